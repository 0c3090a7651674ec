//! What an adapter can do, as plain data: the only input, besides a kernel's own spec, to the choice of a variant.
//!
//! A test builds a profile for any vendor without a GPU.

use std::ops::RangeInclusive;

/// Class of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Software rasteriser: lavapipe, SwiftShader, WARP.
    Cpu,
    /// GPU that shares the system's memory.
    Integrated,
    /// GPU with memory of its own.
    Discrete,
    /// Anything else, virtual GPUs among them.
    Other,
}

/// Facts about an adapter, after the quirks table and the `OCTAVO_DISABLE` variable had their say.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Name that the driver gives.
    pub name: String,
    /// `vulkan`, `metal`, `dx12` or `noop`.
    pub backend: String,
    /// Driver name and version.
    pub driver: String,
    /// PCI vendor, as far as the backend knows.
    pub vendor: u32,
    /// Class.
    pub kind: DeviceKind,
    /// Largest storage binding in bytes.
    pub max_binding: u64,
    /// Largest buffer in bytes.
    pub max_buffer: u64,
    /// Alignment of storage and uniform binding offsets.
    pub offset_align: u64,
    /// Workgroup memory in bytes.
    pub shared_bytes: u32,
    /// Invocations in one workgroup.
    pub max_invocations: u32,
    /// Workgroups in each direction of a dispatch.
    pub max_groups: u32,
    /// Subgroup sizes that may occur, or `None` where subgroup operations must not be used.
    pub subgroups: Option<RangeInclusive<u32>>,
    /// Native half precision in shaders.
    pub f16: bool,
    /// 64-bit whole numbers in shaders.
    pub int64: bool,
    /// Whole-pass timestamps.
    pub timestamps: bool,
    /// How products are spread over lanes, if that was measured; else it follows from the rest.
    pub products: Option<ProductShape>,
    /// Matrix units of f16 factors and f32 sums that subgroups of 32 lanes have together.
    pub matrix: Option<MatrixTile>,
}

/// Rows and columns of the tiles that matrix units multiply; also the name of a slot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixTile {
    /// 8 x 8 x 8.
    Eight,
    /// 16 x 16 x 16.
    Sixteen,
}

impl MatrixTile {
    /// `shaders/slots/matrix/<slot>.wgsl`.
    pub const fn slot(self) -> &'static str {
        match self {
            Self::Eight => "t8",
            Self::Sixteen => "t16",
        }
    }
}

/// How the workgroups of a matrix product are made. Every shape gives the same bits, so one may be chosen by its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ProductShape {
    /// Groups of 32 matrix rows in a workgroup, eight lanes each.
    pub groups: u32,
    /// Lanes along the segments of a sum while there are few tokens: 1, or as many as there can be segments.
    pub segment_lanes: u32,
}

/// Whose adapter it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Maker {
    /// Nobody's: a program.
    Software,
    /// PCI vendor 10de.
    Nvidia,
    /// PCI vendor 1002.
    Amd,
    /// PCI vendor 8086.
    Intel,
    /// Metal, or PCI vendor 106b.
    Apple,
    /// Anybody else's.
    Unknown,
}

/// What kernels may use at most so that they run on every WebGPU-class adapter.
pub const BASELINE_STORAGE_BUFFERS: u32 = 8;
/// Workgroup memory of the baseline, in bytes.
pub const BASELINE_SHARED_BYTES: u32 = 16 << 10;
/// Invocations of the baseline.
pub const BASELINE_INVOCATIONS: u32 = 256;
/// Storage binding size of the baseline, in bytes.
pub const BASELINE_BINDING: u64 = 128 << 20;

impl Profile {
    /// The weakest adapter we run on: WebGPU's default limits and no optional feature.
    pub fn baseline(kind: DeviceKind) -> Self {
        Self {
            name: "baseline".into(),
            backend: "noop".into(),
            driver: String::new(),
            vendor: 0,
            kind,
            max_binding: BASELINE_BINDING,
            max_buffer: 256 << 20,
            offset_align: 256,
            shared_bytes: BASELINE_SHARED_BYTES,
            max_invocations: BASELINE_INVOCATIONS,
            max_groups: 65_535,
            subgroups: None,
            f16: false,
            int64: false,
            timestamps: false,
            products: None,
            matrix: None,
        }
    }

    /// Whose adapter it is.
    pub fn maker(&self) -> Maker {
        match (self.kind, self.vendor) {
            (DeviceKind::Cpu, _) => Maker::Software,
            (_, 0x10de) => Maker::Nvidia,
            (_, 0x1002) => Maker::Amd,
            (_, 0x8086) => Maker::Intel,
            (_, 0x106b) => Maker::Apple,
            // Metal does not tell vendors; what it still runs on beside Apple's own is not worth a guess.
            _ if self.backend == "metal" => Maker::Apple,
            _ => Maker::Unknown,
        }
    }

    /// A card with 32-wide subgroups, half precision and large bindings: what an NVIDIA driver reports.
    pub fn cuda_class() -> Self {
        Self {
            name: "NVIDIA-class card".into(),
            backend: "vulkan".into(),
            vendor: 0x10de,
            max_binding: (2 << 30) - 4,
            max_buffer: 1 << 52,
            offset_align: 32,
            shared_bytes: 48 << 10,
            max_invocations: 1024,
            subgroups: Some(32..=32),
            f16: true,
            timestamps: true,
            ..Self::baseline(DeviceKind::Discrete)
        }
    }

    /// Device memory to count on where the user set no limit, in bytes; no portable call tells what is free.
    pub fn assumed_memory(&self) -> u64 {
        match self.kind {
            DeviceKind::Discrete => 8 << 30,
            DeviceKind::Cpu | DeviceKind::Integrated | DeviceKind::Other => 4 << 30,
        }
    }

    /// Most bytes of KV cache to take where the user set no limit. A software adapter's memory is everybody's, and clearing
    /// it takes time.
    pub fn assumed_kv_bytes(&self) -> u64 {
        match self.kind {
            DeviceKind::Cpu => 512 << 20,
            _ => u64::MAX,
        }
    }

    /// Lanes of a workgroup that works on one row: eight on software adapters, whose barriers cost per subgroup and
    /// whose subgroups hold eight lanes (one AVX register), and `wide` elsewhere.
    pub fn row_lanes(&self, wide: u32) -> u32 {
        match self.kind {
            DeviceKind::Cpu => 8,
            _ => wide.min(self.max_invocations),
        }
    }

    /// How a workgroup of `lanes` reduces a value: by one subgroup operation where the workgroup surely is exactly one
    /// subgroup, else through workgroup memory.
    pub fn reduce_slot(&self, lanes: u32) -> &'static str {
        match &self.subgroups {
            Some(sizes) if *sizes.start() == lanes && *sizes.end() == lanes => "subgroup",
            _ => "workgroup",
        }
    }

    /// Removes features named in a comma-separated list, as `OCTAVO_DISABLE` gives it. Unknown names are returned.
    pub fn disable(&mut self, names: &str) -> Vec<String> {
        let mut unknown = Vec::new();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "f16" => self.f16 = false,
                "subgroups" => self.subgroups = None,
                "int64" => self.int64 = false,
                "timestamps" => self.timestamps = false,
                "matrix" => self.matrix = None,
                other => unknown.push(other.to_owned()),
            }
        }
        unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subgroups_are_used_only_for_whole_workgroups() {
        let mut profile = Profile::cuda_class();
        assert_eq!(profile.reduce_slot(32), "subgroup");
        assert_eq!(profile.reduce_slot(64), "workgroup");
        profile.subgroups = Some(8..=32);
        assert_eq!(profile.reduce_slot(32), "workgroup");
    }

    #[test]
    fn disabled_features_are_gone_and_typos_are_named() {
        let mut profile = Profile::cuda_class();
        assert_eq!(profile.disable("f16, subgroups,subgruops"), ["subgruops"]);
        assert!(!profile.f16 && profile.subgroups.is_none() && profile.timestamps);
    }
}
