//! What loading tells the outside.

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// What is being done.
    pub stage: LoadStage,
    /// Finished part: bytes while uploading, pipelines while compiling, 0 or 1 while opening.
    pub done: u64,
    /// All of it, in the same unit.
    pub total: u64,
}

/// The stages of loading, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadStage {
    /// Files are opened and checked, the adapter is chosen.
    Opening,
    /// Weights go to the device.
    Uploading,
    /// Shaders are compiled.
    Compiling,
}

/// What a runner runs on and what it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunnerInfo {
    /// Name of the adapter.
    pub adapter: String,
    /// Graphics interface, such as `Vulkan`.
    pub backend: String,
    /// Driver and its version, as far as known.
    pub driver: String,
    /// Bytes allocated on the device altogether.
    pub device_bytes: u64,
    /// Of these, weights.
    pub weight_bytes: u64,
    /// Of these, keys and values.
    pub kv_bytes: u64,
    /// Dispatches in one decode step.
    pub dispatches_per_step: u32,
}
