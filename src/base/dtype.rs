//! Element types of tensors in files and on the device.

/// How the elements of a tensor are stored. The block formats are those of GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, missing_docs)]
pub enum DType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

impl DType {
    /// Every type the engine can load, in the order in which messages list them.
    pub const ALL: [DType; 16] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
    ];

    /// Whether its codes are whole numbers of at most a byte, with a scale (and perhaps a minimum) for each 32 or 16 columns, so that
    /// a product can be taken with int12 activations.
    pub const fn has_whole_codes(self) -> bool {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => true,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K => true,
            Self::F32 | Self::F16 | Self::BF16 | Self::IQ4_NL | Self::IQ4_XS | Self::MXFP4 => false,
        }
    }

    /// Lower-case name; also the name of the WGSL slot file `shaders/slots/weights/<name>.wgsl`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q2_K => "q2_k",
            Self::Q3_K => "q3_k",
            Self::Q4_K => "q4_k",
            Self::Q5_K => "q5_k",
            Self::Q6_K => "q6_k",
            Self::IQ4_NL => "iq4_nl",
            Self::IQ4_XS => "iq4_xs",
            Self::MXFP4 => "mxfp4",
        }
    }

    /// Whether every element stands for itself: the full-precision types.
    pub const fn is_plain(self) -> bool {
        self.block_elements() == 1
    }

    /// Elements in one block of the file format; 1 for plain types.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::IQ4_NL | Self::MXFP4 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
        }
    }

    /// Bytes of one block in the file.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_NL => 18,
            Self::IQ4_XS => 136,
            Self::MXFP4 => 17,
        }
    }
}

impl std::str::FromStr for DType {
    type Err = ();

    /// The type with this [`name`](DType::name).
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or(())
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
