//! What a device can do at best, measured, so that benches can say how near a kernel comes. Twin: `reference/peak.rs`.

use crate::error::Result;
use crate::gpu::memory::Use;
use crate::gpu::{Const, DeviceKind, Gpu, Profile, Recorder, Variant};

/// What is measured; the number that the shader knows it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// f32 multiply-adds in registers.
    MultiplyAdd = 0,
    /// Dot products of four signed bytes, in registers.
    Dot = 1,
    /// One pass over memory.
    Read = 2,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::MultiplyAdd, Self::Dot, Self::Read];
}

/// Rounds of a lane's loop times what is written out in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Rounds; at most a few thousand, for lavapipe ends loops after 65,535.
    pub rounds: u32,
    /// Times that the body is written out.
    pub unroll: u32,
}

/// Best speeds that were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Peak {
    /// f32 multiply-adds, two operations each, in 10^9 a second.
    pub gflops: f64,
    /// Dot products of four bytes, eight operations each, in 10^9 operations a second.
    pub byte_gops: f64,
    /// Reading, in 10^9 bytes a second.
    pub read_gbytes: f64,
}

/// Sums of a lane in the first two modes.
const SUMS: u64 = 12;
const REPEATS: usize = 7;

fn lanes(profile: &Profile) -> u32 {
    profile.row_lanes(256)
}

/// The variant of a mode.
pub fn variant(mode: Mode, length: Length, profile: &Profile) -> Variant {
    Variant {
        kernel: "peak",
        slots: vec![],
        consts: vec![
            ("MODE", Const::U32(mode as u32)),
            ("ROUNDS", Const::U32(length.rounds)),
            ("UNROLL", Const::U32(length.unroll)),
        ],
        workgroup: [lanes(profile), 1, 1],
    }
}

/// Every mode.
pub fn variants_for_tests(profile: &Profile) -> Vec<Variant> {
    Mode::ALL.map(|mode| variant(mode, Length { rounds: 3, unroll: 2 }, profile)).to_vec()
}

/// The vector that stands before all else in `source`: a factor and an addend, and the bytes to multiply with.
pub const FACTORS: [u32; 4] = [0x3f80_0000, 0x3f80_0000, 0x01ff_0203, 0];

/// Measures the device.
///
/// # Errors
/// Out of memory, or the device was lost.
pub fn measure(gpu: &Gpu) -> Result<Peak> {
    let profile = &gpu.profile;
    let software = profile.kind == DeviceKind::Cpu;
    let lanes = u64::from(lanes(profile));
    let length = Length { rounds: 512, unroll: 8 };
    let per_lane = u64::from(length.rounds * length.unroll);
    // More than the caches of either kind of device hold, as far as one binding reaches.
    let bytes = if software { 96 << 20 } else { 1 << 30 }.min(profile.max_binding).min(profile.max_buffer);
    let workgroups = [if software { 1024 } else { 8192 }; 2].into_iter().chain([bytes / (16 * lanes * per_lane)]);
    let source = gpu.memory.create("peak source", bytes, Use::Storage)?;
    gpu.write(&source, bytemuck::cast_slice(&FACTORS));
    let most = 16 * lanes * workgroups.clone().max().unwrap_or(1);
    let out = gpu.memory.create("peak results", most, Use::Storage)?;
    let mut rates = [0.0; 3];
    for ((rate, mode), workgroups) in rates.iter_mut().zip(Mode::ALL).zip(workgroups) {
        let workgroups = workgroups.clamp(1, u64::from(profile.max_groups));
        let pipeline = gpu.registry.get(&variant(mode, length, profile))?;
        let mut recorder = Recorder::default();
        let arguments = [("source", &source.whole()), ("out", &out.whole())];
        recorder.dispatch(gpu, "peak", &pipeline, &arguments, [workgroups as u32, 1, 1])?;
        let bundle = recorder.finish();
        // The first one compiles, and clears the memory.
        gpu.times(&bundle, 1)?;
        let best = gpu.times(&bundle, REPEATS)?[0].as_secs_f64();
        let count = match mode {
            Mode::MultiplyAdd => 2 * SUMS,
            Mode::Dot => 8 * SUMS,
            Mode::Read => 16,
        };
        *rate = (workgroups * lanes * per_lane * count) as f64 / best.max(1e-9) / 1e9;
    }
    let [gflops, byte_gops, read_gbytes] = rates;
    Ok(Peak { gflops, byte_gops, read_gbytes })
}
