//! Weight formats on the CPU: decoding and encoding against golden blocks, and the device planes against the file, read back
//! by the formulas in the documentation of `octavo::quant`.

#[path = "common/golden.rs"]
mod golden;

use golden::Tensors;
use octavo::base::DType;
use octavo::kernels::self_test::data::{Source, Spread};
use octavo::model::files::ModelFiles;
use octavo::model::spec::TensorRole;
use octavo::quant::{self, BLOCK_COLUMNS, GROUP_ROWS, ScaleKind, format};
use octavo::weights::pack::{Arrangement, FusedMatrix};
use octavo::weights::tensors::MatrixRef;
use std::ops::Range;

fn quantised() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| !dtype.is_plain())
}

/// Distance in representable numbers; 0 and -0 are the same.
fn ulps(left: f32, right: f32) -> u64 {
    let ordered = |value: f32| match value.to_bits() as i32 {
        bits if bits < 0 => i64::from(i32::MIN) - i64::from(bits),
        bits => i64::from(bits),
    };
    ordered(left).abs_diff(ordered(right))
}

#[test]
fn decoding_agrees_with_golden_blocks() {
    let golden = Tensors::open("gguf/blocks.safetensors");
    let mut compared = 0;
    for dtype in quantised() {
        let written = format(dtype).encoder().is_some();
        for set in if written { &["dequantize", "quantize"][..] } else { &["dequantize"] } {
            let name = format!("{set}.{}", dtype.name().to_uppercase());
            let (bytes, expected) = (golden.bytes(&format!("{name}.bytes")), golden.f32s(&format!("{name}.f32")));
            assert!(expected.len() >= 1024);
            let mut decoded = vec![f32::NAN; expected.len()];
            quant::decode(dtype, &bytes, &mut decoded);
            for (element, (got, want)) in decoded.iter().zip(&expected).enumerate() {
                assert!(ulps(*got, *want) <= 1, "{name} element {element}: {got} is not {want}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 13 * 2048 + 5 * 1024, "{compared}");
}

#[test]
fn encoding_gives_the_golden_bytes() {
    let golden = Tensors::open("gguf/blocks.safetensors");
    let input = golden.f32s("quantize.input");
    for dtype in quant::encodable() {
        assert_eq!(
            encoded(dtype, &input),
            golden.bytes(&format!("quantize.{}.bytes", dtype.name().to_uppercase())),
            "{dtype}"
        );
    }
}

fn encoded(dtype: DType, values: &[f32]) -> Vec<u8> {
    let encode = format(dtype).encoder().expect("octavo writes it");
    let mut bytes = vec![0; values.len() / BLOCK_COLUMNS * format(dtype).unit_bytes()];
    for (values, unit) in values.as_chunks().0.iter().zip(bytes.chunks_exact_mut(format(dtype).unit_bytes())) {
        encode(values, unit);
    }
    bytes
}

/// Weights that are no numbers, or none that the format can hold, give some block and never a panic.
#[test]
fn hostile_numbers_can_be_encoded() {
    let numbers = [0.0, -0.0, 1e-40, -1e-45, f32::MAX, f32::MIN, 7e4, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    for dtype in quant::encodable() {
        for first in numbers {
            for second in numbers {
                let values: Vec<f32> = (0..32).map(|at| if at % 3 == 0 { first } else { second }).collect();
                assert_eq!(encoded(dtype, &values).len(), dtype.block_bytes());
            }
        }
        let mut decoded = [f32::NAN; 32];
        quant::decode(dtype, &encoded(dtype, &[0.0; 32]), &mut decoded);
        assert!(decoded.iter().all(|&value| value == 0.0), "{dtype}");
    }
}

struct Planes {
    codes: Vec<u32>,
    scales: Vec<u32>,
    bits: Vec<u32>,
}

fn pack(matrix: &FusedMatrix<'_>, groups: Range<usize>) -> Planes {
    let words = matrix.plane_words_per_group();
    // Dirty memory, so that padding has to be written.
    let plane = |words: usize| vec![0xdead_beef; words * groups.len()];
    let mut planes = Planes { codes: plane(words.codes), scales: plane(words.scales), bits: plane(words.bits) };
    matrix.pack(groups, &mut planes.codes, &mut planes.scales, &mut planes.bits);
    planes
}

/// One block of the planes, decoded as the shaders do, but in f64 with one rounding at the end.
fn on_device(planes: &Planes, dtype: DType, blocks: usize, row: usize, block: usize) -> [f32; BLOCK_COLUMNS] {
    let shape = format(dtype).planes();
    let (group, lane) = (row / GROUP_ROWS, row % GROUP_ROWS);
    let width = shape.vector_words();
    let vectors = shape.code_words / width;
    let codes: Vec<u32> = (0..shape.code_words)
        .map(|n| planes.codes[(((group * blocks + block) * vectors + n / width) * 32 + lane) * width + n % width])
        .collect();
    let bits: Vec<u32> = (0..shape.bit_words)
        .map(|n| planes.bits[((group * blocks + block) * 32 + lane) * shape.bit_words + n])
        .collect();
    let words = shape.scale.words(blocks);
    // Each of eight lanes finds the words of its four rows together: two of the first sixteen rows, two of the others.
    let owner = (0..8).position(|owner| [0, 1, 16, 17].iter().any(|row| 2 * owner + row == lane)).unwrap();
    let turn = [0, 1, 16, 17].iter().position(|row| 2 * owner + row == lane).unwrap();
    let scale_word = |s: usize| planes.scales[(group * words + s) * 32 + 4 * owner + turn];
    let half = |word: u32, which: usize| f64::from(half::f16::from_bits((word >> (16 * which)) as u16).to_f32());
    let byte = |word: u32, which: usize| (word >> (8 * which)) as u8;
    // Scales of the block: (outer, outer minimum, inner bytes).
    let (scale, min, inner) = match shape.scale {
        ScaleKind::None => (1.0, 0.0, [0, 0]),
        ScaleKind::Scale => (half(scale_word(block / 2), block % 2), 0.0, [0, 0]),
        ScaleKind::ScaleMin => (half(scale_word(block), 0), half(scale_word(block), 1), [0, 0]),
        ScaleKind::Exponent => (2f64.powi(i32::from(byte(scale_word(block / 4), block % 4)) - 128), 0.0, [0, 0]),
        ScaleKind::SuperBlock { inner } => {
            let (start, at) = (block / 8 * (1 + 2 * inner), block % 8 * inner);
            let inner = [0, inner - 1].map(|n| byte(scale_word(start + 1 + (at + n) / 4), (at + n) % 4));
            (half(scale_word(start), 0), half(scale_word(start), 1), inner)
        }
    };
    std::array::from_fn(|c| {
        let (vector, lane4) = (c / 4, c % 4);
        let nibble = || codes[vector % 4] >> (8 * lane4 + 4 * (vector / 4)) & 15;
        let pair = |words: &[u32]| words[vector % 2] >> (8 * lane4 + 2 * (vector / 2)) & 3;
        let bit = |word: u32| word >> (8 * lane4 + vector) & 1;
        let signed = f64::from(inner[c / 16] as i8);
        let [s, t] = inner.map(f64::from);
        let level =
            || f64::from([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113][nibble() as usize]);
        let value = match dtype {
            DType::F32 => return f32::from_bits(codes[c]),
            DType::F16 => half(codes[c / 2], c % 2),
            DType::BF16 => return f32::from_bits((codes[c / 2] >> (16 * (c % 2))) << 16),
            DType::Q8_0 => scale * f64::from(byte(codes[vector], lane4) as i8),
            DType::Q4_0 => scale * (f64::from(nibble()) - 8.0),
            DType::Q4_1 => scale * f64::from(nibble()) + min,
            DType::Q5_0 => scale * (f64::from(nibble() | (bits[0] >> c & 1) << 4) - 16.0),
            DType::Q5_1 => scale * f64::from(nibble() | (bits[0] >> c & 1) << 4) + min,
            DType::Q2_K => {
                let inner = inner[c / 16];
                scale * f64::from(inner & 15) * f64::from(pair(&codes)) - min * f64::from(inner >> 4)
            }
            DType::Q3_K => scale * signed * (f64::from(pair(&codes) | bit(bits[0]) << 2) - 4.0),
            DType::Q4_K => scale * s * f64::from(nibble()) - min * t,
            DType::Q5_K => scale * s * f64::from(nibble() | bit(bits[0]) << 4) - min * t,
            DType::Q6_K => scale * signed * (f64::from(nibble() | pair(&bits) << 4) - 32.0),
            DType::IQ4_NL => scale * level(),
            DType::IQ4_XS => scale * f64::from(inner[0] as i8) * level(),
            DType::MXFP4 => {
                let doubled = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0][(nibble() & 7) as usize];
                if nibble() >= 8 { -scale * doubled } else { scale * doubled }
            }
        };
        value as f32
    })
}

/// Some rows of random blocks, every third of them extreme.
fn random_rows(source: &mut Source, dtype: DType, rows: usize, columns: usize) -> Vec<u8> {
    let spread = |row| if row % 3 == 1 { Spread::Extreme } else { Spread::Heavy };
    (0..rows).flat_map(|row| source.weights(dtype, columns, spread(row))).collect()
}

/// Columns of `blocks` blocks, or the next whole number of super-blocks.
fn columns(dtype: DType, blocks: usize) -> usize {
    (blocks * BLOCK_COLUMNS).next_multiple_of(format(dtype).unit_columns())
}

#[test]
fn stacked_planes_mean_exactly_what_the_file_means() {
    for (seed, dtype) in DType::ALL.into_iter().enumerate() {
        for (blocks, part_rows) in [(1, vec![1]), (3, vec![32, 16]), (2, vec![5, 40, 20]), (9, vec![64])] {
            let mut source = Source::new(seed as u32);
            let columns = columns(dtype, blocks);
            let blocks = columns / BLOCK_COLUMNS;
            let parts: Vec<Vec<u8>> =
                part_rows.iter().map(|&rows| random_rows(&mut source, dtype, rows, columns)).collect();
            let refs = parts.iter().zip(&part_rows).map(|(bytes, &rows)| MatrixRef::new(dtype, rows, columns, bytes));
            let matrix = FusedMatrix::new(refs.map(Result::unwrap).collect(), Arrangement::Stacked).unwrap();
            let rows: usize = part_rows.iter().sum();
            assert_eq!((matrix.rows(), matrix.blocks(), matrix.groups()), (rows, blocks, rows.div_ceil(32)));

            let planes = pack(&matrix, 0..matrix.groups());
            let file = parts.concat();
            let mut expected = vec![0.0; rows * columns];
            quant::decode(dtype, &file, &mut expected);
            for row in 0..matrix.groups() * GROUP_ROWS {
                for block in 0..blocks {
                    let found = on_device(&planes, dtype, blocks, row, block);
                    let padding = [0.0; BLOCK_COLUMNS];
                    let wanted = match row < rows {
                        true => &expected[row * columns + block * BLOCK_COLUMNS..][..BLOCK_COLUMNS],
                        false => &padding[..],
                    };
                    assert_eq!(found, wanted, "{dtype} row {row} block {block} seed {seed}");
                }
            }
        }
    }
}

#[test]
fn rows_beyond_a_matrix_are_zero_words() {
    for dtype in DType::ALL {
        let columns = columns(dtype, 1);
        let bytes = random_rows(&mut Source::new(3), dtype, 1, columns);
        let part = MatrixRef::new(dtype, 1, columns, &bytes).unwrap();
        let Planes { codes, scales, bits } = pack(&FusedMatrix::new(vec![part], Arrangement::Stacked).unwrap(), 0..1);
        let shape = format(dtype).planes();
        for (plane, width) in [(codes, shape.vector_words()), (scales, 1), (bits, shape.bit_words.max(1))] {
            let words = plane.iter().enumerate();
            assert!(words.into_iter().all(|(at, &word)| word == 0 || at / width % GROUP_ROWS == 0), "{dtype}");
        }
    }
}

#[test]
fn gate_and_up_rows_alternate_by_sixteen() {
    for (seed, dtype) in DType::ALL.into_iter().enumerate() {
        for rows in [16, 48, 20] {
            let mut source = Source::new(100 + seed as u32);
            let columns = columns(dtype, 3);
            let blocks = columns / BLOCK_COLUMNS;
            let [gate, up] = [(), ()].map(|()| random_rows(&mut source, dtype, rows, columns));
            let part = |bytes| MatrixRef::new(dtype, rows, columns, bytes).unwrap();
            let matrix = FusedMatrix::new(vec![part(&gate), part(&up)], Arrangement::GateUp).unwrap();
            assert_eq!((matrix.rows(), matrix.groups()), (2 * rows, rows.div_ceil(16)));
            let planes = pack(&matrix, 0..matrix.groups());
            for group in 0..matrix.groups() {
                for lane in 0..GROUP_ROWS {
                    let (file, row) = (if lane < 16 { &gate } else { &up }, group * 16 + lane % 16);
                    let mut expected = vec![0.0; columns];
                    if row < rows {
                        part(file).decode_row(row, &mut expected);
                    }
                    let found: Vec<f32> = (0..blocks)
                        .flat_map(|block| on_device(&planes, dtype, blocks, group * 32 + lane, block))
                        .collect();
                    assert_eq!(found, expected, "{dtype} group {group} lane {lane}");
                }
            }
        }
    }
}

#[test]
fn any_range_of_groups_equals_that_part_of_the_whole() {
    for dtype in DType::ALL {
        let (rows, columns) = (150, columns(dtype, 3));
        let bytes = random_rows(&mut Source::new(7), dtype, rows, columns);
        let part = MatrixRef::new(dtype, rows, columns, &bytes).unwrap();
        let matrix = FusedMatrix::new(vec![part], Arrangement::Stacked).unwrap();
        let whole = pack(&matrix, 0..matrix.groups());
        let words = matrix.plane_words_per_group();
        for range in [0..1, 1..3, 4..5, 2..2] {
            let piece = pack(&matrix, range.clone());
            assert_eq!(piece.codes, whole.codes[range.start * words.codes..range.end * words.codes]);
            assert_eq!(piece.scales, whole.scales[range.start * words.scales..range.end * words.scales]);
            assert_eq!(piece.bits, whole.bits[range.start * words.bits..range.end * words.bits]);
        }
    }
}

#[track_caller]
fn assert_same_planes(left: &FusedMatrix<'_>, right: &FusedMatrix<'_>, what: &str) {
    assert_eq!(left.dtype(), right.dtype(), "{what}");
    let [left, right] = [left, right].map(|matrix| pack(matrix, 0..matrix.groups()));
    let same = left.codes == right.codes && left.scales == right.scales && left.bits == right.bits;
    assert!(same, "{what}");
}

/// Rounding while packing is encoding the file's numbers and packing the result, from every full-precision type.
#[test]
fn quantising_while_packing_equals_packing_a_quantised_file() {
    for (seed, plain) in [DType::F32, DType::F16, DType::BF16].into_iter().enumerate() {
        let (rows, columns) = (37, 96);
        let mut source = Source::new(300 + seed as u32);
        let files = [(), ()].map(|()| source.weights(plain, rows * columns, Spread::Heavy));
        for to in quant::encodable() {
            let encoded = files.clone().map(|bytes| {
                let mut values = vec![0.0; rows * columns];
                quant::decode(plain, &bytes, &mut values);
                encoded(to, &values)
            });
            for arrangement in [Arrangement::Stacked, Arrangement::GateUp] {
                let parts = |dtype, files: &'_ [Vec<u8>; 2]| -> Vec<_> {
                    files.each_ref().map(|bytes| MatrixRef::new(dtype, rows, columns, leak(bytes)).unwrap()).into()
                };
                let live = FusedMatrix::new(parts(plain, &files), arrangement).unwrap().quantized(Some(to)).unwrap();
                let stored = FusedMatrix::new(parts(to, &encoded), arrangement).unwrap();
                assert_same_planes(&live, &stored, &format!("{plain} to {to}, {arrangement:?}"));
                // What is quantised already stays.
                let again = FusedMatrix::new(parts(to, &encoded), arrangement).unwrap();
                assert_same_planes(&again.quantized(Some(DType::Q8_0)).unwrap(), &stored, "unchanged");
            }
        }
    }
}

/// Test data may live as long as the test.
fn leak(bytes: &[u8]) -> &'static [u8] {
    bytes.to_vec().leak()
}

/// The GGUF files were quantised by other software from the very numbers of the folder.
#[test]
fn a_quantised_folder_has_the_planes_of_the_quantised_file() {
    let folder = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    for to in quant::encodable() {
        let file =
            ModelFiles::open(&golden::path(&format!("gguf/tiny-llama.{}.gguf", to.name().to_uppercase()))).unwrap();
        let mut roles = vec![TensorRole::Embed, TensorRole::Head];
        for layer in 0..folder.spec.layers.len() {
            use TensorRole::*;
            let of_layer = [Query, Key, Value, Output, Gate, Up, Down];
            roles.extend(of_layer.map(|role: fn(usize) -> TensorRole| role(layer)));
        }
        for role in roles {
            let [ours, theirs] = [&folder, &file].map(|files| {
                FusedMatrix::new(vec![files.tensors.matrix(role).unwrap()], Arrangement::Stacked)
                    .and_then(|matrix| matrix.quantized(Some(to)))
                    .unwrap()
            });
            assert_same_planes(&ours, &theirs, &format!("{to} {role:?}"));
        }
    }
}

#[test]
fn matrices_that_cannot_be_joined_or_converted_are_refused() {
    let bytes = vec![0; 32 * 64 * 4];
    let part = |dtype: DType, rows, columns: usize| {
        let row_bytes = columns / dtype.block_elements() * dtype.block_bytes();
        MatrixRef::new(dtype, rows, columns, &bytes[..rows * row_bytes]).unwrap()
    };
    let refused = |parts, arrangement, word: &str| {
        let message = FusedMatrix::new(parts, arrangement).err().expect("refused").to_string();
        assert!(message.contains(word), "{message}");
    };
    refused(vec![], Arrangement::Stacked, "at least one");
    refused(vec![part(DType::F32, 4, 32), part(DType::F16, 4, 32)], Arrangement::Stacked, "f16");
    refused(vec![part(DType::F32, 4, 32), part(DType::F32, 4, 64)], Arrangement::Stacked, "64");
    refused(vec![part(DType::F32, 4, 33)], Arrangement::Stacked, "33");
    refused(vec![part(DType::F32, 4, 32), part(DType::F32, 5, 32)], Arrangement::GateUp, "equal rows");
    refused(vec![part(DType::F32, 4, 32)], Arrangement::GateUp, "equal rows");
    let matrix = FusedMatrix::new(vec![part(DType::F32, 4, 32)], Arrangement::Stacked).unwrap();
    let message = matrix.quantized(Some(DType::Q6_K)).err().expect("refused").to_string();
    assert!(message.contains("q6_k"), "{message}");
    // Half a super-block is no row.
    assert!(MatrixRef::new(DType::Q4_K, 1, 128, &bytes[..72]).is_err());
}
