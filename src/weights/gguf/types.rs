//! Numbers of tensor types in GGUF files.

use crate::base::DType;

/// The type with number `id`, if octavo reads it.
pub fn known(id: u32) -> Option<DType> {
    Some(match id {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        10 => DType::Q2_K,
        11 => DType::Q3_K,
        12 => DType::Q4_K,
        13 => DType::Q5_K,
        14 => DType::Q6_K,
        20 => DType::IQ4_NL,
        23 => DType::IQ4_XS,
        30 => DType::BF16,
        39 => DType::MXFP4,
        _ => return None,
    })
}

/// The name of type `id`, for messages about types that octavo does not read.
pub fn name(id: u32) -> String {
    const OTHERS: [(u32, &str); 18] = [
        (9, "Q8_1"),
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (17, "IQ2_XS"),
        (18, "IQ3_XXS"),
        (19, "IQ1_S"),
        (21, "IQ3_S"),
        (22, "IQ2_S"),
        (24, "I8"),
        (25, "I16"),
        (26, "I32"),
        (27, "I64"),
        (28, "F64"),
        (29, "IQ1_M"),
        (31, "Q4_0_4_4"),
        (34, "TQ1_0"),
        (35, "TQ2_0"),
        (40, "NVFP4"),
    ];
    match known(id) {
        Some(dtype) => dtype.name().to_uppercase(),
        None => OTHERS
            .iter()
            .find(|(other, _)| *other == id)
            .map_or_else(|| format!("number {id}"), |(_, name)| (*name).to_owned()),
    }
}
