//! Ctrl-C: the first ends what is being generated, and the command closes as usual; the second ends the process.

use octavo::engine::EngineHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What the shell expects of a process that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Knows whether the user asked for an end.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    asked: Arc<AtomicUsize>,
    busy: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on, and cancels all requests of `engine` when asked.
    pub fn install(engine: &EngineHandle) -> Self {
        let interrupt = Self::default();
        let (seen, engine) = (interrupt.clone(), engine.clone());
        let installed = ctrlc::set_handler(move || {
            let before = seen.asked.fetch_add(1, Ordering::Relaxed);
            if before > 0 || !seen.busy.load(Ordering::Relaxed) {
                eprintln!();
                std::process::exit(INTERRUPTED);
            }
            engine.cancel_all();
        });
        if let Err(error) = installed {
            log::warn!("Ctrl-C will end the program at once: {error}");
        }
        interrupt
    }

    /// Runs `work`, during which Ctrl-C cancels instead of ending the process.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.asked.store(0, Ordering::Relaxed);
        self.busy.store(true, Ordering::Relaxed);
        let result = work();
        self.busy.store(false, Ordering::Relaxed);
        result
    }

    /// Whether Ctrl-C came during the work under way, or the last one.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) > 0
    }
}
