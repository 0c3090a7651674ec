//! `octavo doctor`: what graphics adapters there are, what octavo makes of each, and whether its kernels compute what they
//! should there.

use crate::Outcome;
use crate::output;
use octavo::error::Result;
use octavo::gpu::device::ShaderMode;
use octavo::gpu::{DeviceKind, FoundAdapter, Gpu, Profile, list_adapters};
use octavo::kernels::choice::{Choice, choices};
use octavo::kernels::self_test::{self, Verdict};
use serde::Serialize;
use std::fmt::Write;

#[derive(clap::Args)]
pub struct Args {
    /// Write the findings as a JSON line
    #[arg(long)]
    json: bool,
}

const NO_ADAPTER: &str = "\
No graphics adapter was found. What to install:
  Debian, Ubuntu   apt-get install libvulkan1 mesa-vulkan-drivers
                   (brings Mesa's software driver too, so that a GPU is not needed)
  Fedora           dnf install vulkan-loader mesa-vulkan-drivers
  Arch             pacman -S vulkan-icd-loader vulkan-swrast, or the driver of your card
  NVIDIA on Linux  the proprietary driver, which has Vulkan, and the Vulkan loader
  macOS, Windows   nothing; Metal and Direct3D 12 come with the system (is this a session without graphics?)
In a container, the GPU must be passed in.
";

/// The findings.
#[derive(Serialize)]
struct Findings {
    adapters: Vec<Adapter>,
    /// What to do where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'static str>,
}

#[derive(Serialize)]
struct Adapter {
    index: usize,
    name: String,
    backend: String,
    driver: String,
    kind: &'static str,
    f16: bool,
    int64: bool,
    timestamps: bool,
    subgroup_sizes: Option<[u32; 2]>,
    max_binding_bytes: u64,
    max_buffer_bytes: u64,
    workgroup_memory_bytes: u32,
    max_invocations: u32,
    offset_alignment: u64,
    choices: Vec<Choice>,
    /// Why there are no tests, if the driver did not even open.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    tests: Vec<Test>,
    passed: bool,
}

#[derive(Serialize)]
struct Test {
    kernel: &'static str,
    case: String,
    passed: bool,
    /// Largest error, as a share of what is allowed.
    worst_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let adapters: Vec<Adapter> = list_adapters()?.into_iter().enumerate().map(|(i, found)| examine(i, found)).collect();
    let advice = adapters.is_empty().then_some(NO_ADAPTER);
    let findings = Findings { adapters, advice };
    // A reader that left has no use for the rest.
    let _ = match args.json {
        true => output::write_json(&findings)?,
        false => output::write(&report(&findings))?,
    };
    let well = !findings.adapters.is_empty() && findings.adapters.iter().all(|adapter| adapter.passed);
    Ok(if well { Outcome::Success } else { Outcome::Failure })
}

fn examine(index: usize, found: FoundAdapter) -> Adapter {
    let Profile {
        name,
        backend,
        driver,
        kind,
        max_binding,
        max_buffer,
        offset_align,
        shared_bytes,
        max_invocations,
        subgroups,
        f16,
        int64,
        timestamps,
        ..
    } = found.profile.clone();
    let choices = choices(&found.profile);
    let verdicts = Gpu::open_adapter(found, ShaderMode::Trusted).and_then(|gpu| self_test::run(&gpu));
    let (tests, failure) = match verdicts {
        Ok(verdicts) => (verdicts.into_iter().map(test).collect(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    Adapter {
        index,
        name,
        backend,
        driver,
        kind: match kind {
            DeviceKind::Cpu => "software",
            DeviceKind::Integrated => "integrated GPU",
            DeviceKind::Discrete => "discrete GPU",
            DeviceKind::Other => "other",
        },
        f16,
        int64,
        timestamps,
        subgroup_sizes: subgroups.map(|sizes| [*sizes.start(), *sizes.end()]),
        max_binding_bytes: max_binding,
        max_buffer_bytes: max_buffer,
        workgroup_memory_bytes: shared_bytes,
        max_invocations,
        offset_alignment: offset_align,
        choices,
        passed: failure.is_none() && tests.iter().all(|test: &Test| test.passed),
        failure,
        tests,
    }
}

fn test(verdict: Verdict) -> Test {
    let Verdict { kernel, case, outcome } = verdict;
    let passed = outcome.is_ok();
    let (worst_share, message) = match outcome {
        Ok(share) => (Some(share), None),
        Err(message) => (None, Some(message)),
    };
    Test { kernel, case, passed, worst_share, message }
}

fn report(findings: &Findings) -> String {
    let mut text = String::new();
    if let Some(advice) = findings.advice {
        text.push_str(advice);
    }
    for adapter in &findings.adapters {
        // Writing to a text cannot fail.
        let _ = write_adapter(&mut text, adapter);
    }
    text
}

fn write_adapter(text: &mut String, adapter: &Adapter) -> std::fmt::Result {
    let mib = |bytes: u64| bytes >> 20;
    writeln!(text, "{}: {} ({}, {})", adapter.index, adapter.name, adapter.backend, adapter.kind)?;
    writeln!(text, "   driver      {}", adapter.driver)?;
    let subgroups = match adapter.subgroup_sizes {
        Some([low, high]) if low == high => format!("subgroups of {low}"),
        Some([low, high]) => format!("subgroups of {low} to {high}"),
        None => "no subgroups".into(),
    };
    let has = |there: bool, name: &str| if there { format!(", {name}") } else { format!(", no {name}") };
    let [f16, int64, timestamps] = [(adapter.f16, "f16"), (adapter.int64, "int64"), (adapter.timestamps, "timestamps")]
        .map(|(there, name)| has(there, name));
    writeln!(text, "   features    {subgroups}{f16}{int64}{timestamps}")?;
    writeln!(
        text,
        "   limits      bindings of {} MiB, buffers of {} MiB, {} KiB and {} lanes a workgroup",
        mib(adapter.max_binding_bytes),
        mib(adapter.max_buffer_bytes),
        adapter.workgroup_memory_bytes >> 10,
        adapter.max_invocations
    )?;
    for Choice { what, chosen, reason } in &adapter.choices {
        writeln!(text, "   {what}: {chosen}; {reason}")?;
    }
    if let Some(failure) = &adapter.failure {
        writeln!(text, "   FAILED: {failure}")?;
    }
    for Test { kernel, case, worst_share, message, .. } in &adapter.tests {
        match (worst_share, message) {
            (Some(share), _) if *share > 0.0 => {
                writeln!(text, "   ok     {kernel:<13} {case:<26} {:.0} % of the error allowed", share * 100.0)?;
            }
            (Some(_), _) => writeln!(text, "   ok     {kernel:<13} {case:<26} exact")?,
            (None, message) => {
                writeln!(text, "   FAILED {kernel:<13} {case}: {}", message.as_deref().unwrap_or("no verdict"))?;
            }
        }
    }
    let count = adapter.tests.len();
    match adapter.passed {
        true => writeln!(text, "   healthy: all {count} self-tests passed\n"),
        false => writeln!(text, "   BROKEN: octavo's results would be wrong here; choose another with --adapter\n"),
    }
}
