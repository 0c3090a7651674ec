//! What kernels choose on an adapter, and why: the table that `octavo doctor` prints, made from the variants themselves, and the
//! one choice that may be measured instead. A choice that would change the order of a sum follows from the profile alone, so
//! that the same adapter always gives the same tokens; only [`ProductShape`]s, which all give the same bits, compete by speed.

use super::{Form, attention, matmul, norm};
use crate::base::DType;
use crate::gpu::{DeviceKind, Maker, ProductShape, Profile};
use crate::model::spec::{AttnSpec, NormKind};

/// Which variant of a kernel runs, and why.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Choice {
    /// Kernels that it is about.
    pub what: &'static str,
    /// What was chosen.
    pub chosen: String,
    /// Why.
    pub reason: String,
}

/// Most segments of a sum, and so lanes along them.
const SEGMENTS: u32 = 8;

/// The shape of products: the measured one, or the usual one of the kind.
pub fn product_shape(profile: &Profile) -> ProductShape {
    profile.products.unwrap_or_else(|| usual_shape(profile))
}

fn usual_shape(profile: &Profile) -> ProductShape {
    match profile.kind {
        // MEASURED on lavapipe: one subgroup a workgroup, for barriers cost per subgroup, and nothing along a sum, for two
        // cores are filled as it is.
        DeviceKind::Cpu => ProductShape { groups: 1, segment_lanes: 1 },
        _ => ProductShape { groups: 4, segment_lanes: SEGMENTS },
    }
}

/// Shapes worth measuring on this adapter, the usual one first; at most six, all within its limits.
pub fn product_candidates(profile: &Profile) -> Vec<ProductShape> {
    let shapes: &[(u32, u32)] = match profile.kind {
        DeviceKind::Cpu => &[(1, 1), (2, 1), (4, 1)],
        _ => &[(4, SEGMENTS), (2, SEGMENTS), (1, SEGMENTS), (8, 1), (4, 1), (16, 1)],
    };
    let shapes = shapes.iter().map(|&(groups, segment_lanes)| ProductShape { groups, segment_lanes });
    shapes.filter(|shape| fits(shape, profile)).collect()
}

/// Whether every tile of a product in this shape stays within the limits of the adapter. Products that leave their rows for the
/// next one keep all outputs of a workgroup until then.
fn fits(shape: &ProductShape, profile: &Profile) -> bool {
    let lanes = 8 * shape.groups;
    let largest_tile = matmul::TILES[matmul::TILES.len() - 1];
    let left = 4 * largest_tile * 4 * lanes;
    let sums = 16 * lanes;
    lanes * shape.segment_lanes <= profile.max_invocations && left + sums <= profile.shared_bytes
}

/// Every choice of this adapter.
pub fn choices(profile: &Profile) -> Vec<Choice> {
    vec![
        products(profile),
        sums(profile),
        reductions(profile),
        attention_choice(profile),
        matrix_units(profile),
        Choice {
            what: "half precision",
            chosen: "storage only".into(),
            reason: match profile.f16 {
                true => {
                    "sums are f32 everywhere; unpacking needs no feature, and native f16 is slower on software adapters"
                }
                false => "the adapter has none, and none is needed",
            }
            .into(),
        },
    ]
}

fn products(profile: &Profile) -> Choice {
    let spec = matmul::Spec {
        dtype: DType::Q4_0,
        form: Form::Int12,
        normed: false,
        epilogue: matmul::Epilogue::Store,
        batch: matmul::Batch::Rows,
    };
    let [rows, segments, _] = matmul::variant(&spec, 1, profile).workgroup;
    let tiles = matmul::TILES.map(|tile| tile.to_string()).join(", ");
    Choice {
        what: "products",
        chosen: format!("{rows} x {segments} lanes for one token, register tiles of {tiles} tokens"),
        reason: match (profile.products, profile.kind) {
            (Some(_), _) => "measured on this adapter; every shape gives the same bits".into(),
            (None, DeviceKind::Cpu) => "one subgroup a workgroup and no barrier is fastest on software adapters".into(),
            (None, _) => "lanes along the sum, so that one token fills the adapter; `products` may be measured".into(),
        },
    }
}

fn sums(profile: &Profile) -> Choice {
    let pieces = matmul::segments(usize::MAX, profile);
    Choice {
        what: "sums of products",
        chosen: match pieces {
            1 => "from first to last column".into(),
            _ => format!("in up to {pieces} segments"),
        },
        reason: match profile.kind {
            DeviceKind::Cpu => "few cores are filled by rows alone".into(),
            _ => "by the matrix, never by the batch, so that no token depends on who else runs".into(),
        },
    }
}

fn reductions(profile: &Profile) -> Choice {
    let norm = norm::variant(NormKind::Rms, norm::Rows::All, Form::F32, profile);
    let slot = norm.slots.iter().find(|(slot, _)| *slot == "reduce").map_or("none", |(_, name)| *name);
    let lanes = norm.workgroup[0];
    let reason = match &profile.subgroups {
        None => "there are no subgroup operations, or they are disabled".into(),
        Some(sizes) if sizes.start() == sizes.end() && *sizes.start() == lanes => {
            format!("a workgroup is exactly one subgroup of {lanes}")
        }
        Some(sizes) if sizes.start() == sizes.end() => {
            format!("subgroups have {} lanes and workgroups {lanes}", sizes.start())
        }
        Some(sizes) => {
            let (low, high) = (sizes.start(), sizes.end());
            match profile.maker() {
                Maker::Apple => format!("Metal says {low} to {high} lanes, so no workgroup is surely one subgroup"),
                Maker::Intel => format!("the driver compiles for {low} to {high} lanes as it likes"),
                _ => format!("subgroups have {low} to {high} lanes, so no workgroup is surely one"),
            }
        }
    };
    Choice { what: "reductions", chosen: format!("{slot}, {lanes} lanes"), reason }
}

fn matrix_units(profile: &Profile) -> Choice {
    let (chosen, reason) = match profile.matrix {
        Some(tile) => {
            (tile.slot().replace('t', "tiles of ") + ", f16 and bf16 weights", "after a comparison with register tiles")
        }
        None => ("none".into(), "the adapter offers none of f16 factors and f32 sums for subgroups of 32 lanes"),
    };
    Choice { what: "matrix units", chosen, reason: reason.into() }
}

fn attention_choice(profile: &Profile) -> Choice {
    let spec = attention::Spec::new(&AttnSpec::plain(9, 3, 64), super::KvDtype::F16);
    let variant = attention::variant(&spec, attention::Mode::Decode, Form::F32, profile);
    let chunk = crate::base::KV_CHUNK;
    let reason = match profile.kind {
        DeviceKind::Cpu => "a lane weighs several heads at once, so that each value is read once".into(),
        _ => format!("one workgroup a row and head group; chunks of {chunk} positions apart where rows are few"),
    };
    Choice { what: "attention", chosen: format!("{} lanes", variant.workgroup[0]), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles() -> Vec<Profile> {
        let card = Profile::cuda_class();
        let made = |vendor, subgroups| Profile { vendor, subgroups: Some(subgroups), ..card.clone() };
        vec![
            Profile::baseline(DeviceKind::Cpu),
            Profile { subgroups: Some(8..=8), ..Profile::baseline(DeviceKind::Cpu) },
            card.clone(),
            made(0x1002, 64..=64),
            made(0x1002, 32..=64),
            made(0x8086, 8..=32),
            Profile { backend: "metal".into(), ..made(0, 4..=64) },
            Profile::baseline(DeviceKind::Other),
        ]
    }

    #[test]
    fn makers_are_known_by_kind_vendor_and_backend() {
        let makers: Vec<Maker> = profiles().iter().map(Profile::maker).collect();
        use Maker::*;
        assert_eq!(makers, [Software, Software, Nvidia, Amd, Amd, Intel, Apple, Unknown]);
    }

    #[test]
    fn candidates_begin_with_the_usual_shape_and_fit() {
        for profile in profiles() {
            let candidates = product_candidates(&profile);
            assert_eq!(candidates.first(), Some(&product_shape(&profile)), "{}", profile.name);
            assert!(candidates.len() <= 6 && candidates.len() > 1);
            for shape in candidates {
                assert!(8 * shape.groups * shape.segment_lanes <= profile.max_invocations);
                let chosen = Profile { products: Some(shape), ..profile.clone() };
                assert_eq!(product_shape(&chosen), shape);
                // The order of sums does not follow it.
                assert_eq!(matmul::segments(64, &chosen), matmul::segments(64, &profile));
                assert!(shape.segment_lanes == 1 || shape.segment_lanes >= matmul::segments(usize::MAX, &chosen));
            }
        }
    }

    #[test]
    fn reasons_name_what_decided() {
        let reason = |profile: &Profile, what: &str| {
            let choice = choices(profile).into_iter().find(|choice| choice.what == what).unwrap();
            (choice.chosen, choice.reason)
        };
        let all = profiles();
        let expect = [
            (1, "subgroup, 8 lanes", "exactly one subgroup of 8"),
            (0, "workgroup, 8 lanes", "no subgroup operations"),
            (2, "workgroup, 64 lanes", "subgroups have 32 lanes and workgroups 64"),
            (3, "subgroup, 64 lanes", "exactly one subgroup of 64"),
            (4, "workgroup, 64 lanes", "32 to 64 lanes"),
            (5, "workgroup, 64 lanes", "the driver compiles for 8 to 32"),
            (6, "workgroup, 64 lanes", "Metal says 4 to 64"),
        ];
        for (index, chosen, part) in expect {
            let (found, why) = reason(&all[index], "reductions");
            assert!(found == chosen && why.contains(part), "{}: {found}; {why}", all[index].name);
        }
        let measured =
            Profile { products: Some(ProductShape { groups: 2, segment_lanes: 8 }), ..Profile::cuda_class() };
        let (chosen, why) = reason(&measured, "products");
        assert!(chosen.starts_with("16 x 8 lanes") && why.contains("measured"), "{chosen}; {why}");
        let (chosen, _) = reason(&all[0], "products");
        assert!(chosen.starts_with("8 x 1 lanes"), "{chosen}");
        for profile in &all {
            assert!(choices(profile).iter().all(|choice| !choice.chosen.is_empty() && !choice.reason.is_empty()));
        }
    }
}
