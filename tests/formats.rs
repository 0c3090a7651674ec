//! Weight formats against golden blocks, and the device planes against the file: repacking must lose nothing.

use octavo::base::DType;
use octavo::quant::{BLOCK_COLUMNS, GROUP_ROWS, PlaneShape, ScaleKind, format};
use octavo::weights::pack::{Arrangement, FusedMatrix};
use octavo::weights::tensors::MatrixRef;
use safetensors::SafeTensors;
use std::ops::Range;

const QUANTISED: [DType; 5] = [DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1];

fn block_bytes(dtype: DType) -> usize {
    BLOCK_COLUMNS / dtype.block_elements() * dtype.block_bytes()
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
    let file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/gguf/blocks.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&file).unwrap();
    let mut compared = 0;
    for dtype in QUANTISED {
        for set in ["dequantize", "quantize"] {
            let name = dtype.name().to_uppercase();
            let bytes = golden.tensor(&format!("{set}.{name}.bytes")).unwrap();
            let expected = golden.tensor(&format!("{set}.{name}.f32")).unwrap();
            let expected: Vec<f32> =
                expected.data().chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
            let mut decoded = [0.0; BLOCK_COLUMNS];
            let blocks = bytes.data().chunks_exact(block_bytes(dtype));
            assert!(blocks.len() >= 32 && expected.len() == blocks.len() * BLOCK_COLUMNS, "{set} {name}");
            for (block, expected) in blocks.zip(expected.chunks_exact(BLOCK_COLUMNS)) {
                format(dtype).decode(block, &mut decoded);
                for (element, (got, want)) in decoded.iter().zip(expected).enumerate() {
                    assert!(ulps(*got, *want) <= 1, "{set} {name} element {element}: {got} is not {want}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared >= 10 * 1024, "{compared}");
}

/// Deterministic words; the seed is in every message.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ word >> 31
    }

    /// Any bytes at all, with runs of the extremes.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let byte = |words: &mut Self| match words.next() % 8 {
            0 => 0x00,
            1 => 0xff,
            2 => 0x80,
            3 => 0x7f,
            _ => words.next() as u8,
        };
        (0..count).map(|_| byte(self)).collect()
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

/// Reads one block back from the planes by the formulas in the documentation of `octavo::quant`, as file bytes.
fn unpack(planes: &Planes, dtype: DType, blocks: usize, row: usize, block: usize) -> Vec<u8> {
    let PlaneShape { code_vectors, scale, bits } = format(dtype).planes();
    let (group, lane) = (row / GROUP_ROWS, row % GROUP_ROWS);
    let mut bytes = Vec::new();
    match scale {
        ScaleKind::None => {}
        ScaleKind::Scale => {
            let words = blocks.div_ceil(2);
            let word = planes.scales[(group * words + block / 2) * 32 + lane];
            bytes.extend(((word >> (block % 2 * 16)) as u16).to_le_bytes());
        }
        ScaleKind::ScaleMin => bytes.extend(planes.scales[(group * blocks + block) * 32 + lane].to_le_bytes()),
    }
    if bits {
        bytes.extend(planes.bits[(group * blocks + block) * 32 + lane].to_le_bytes());
    }
    for vector in 0..code_vectors {
        let start = (((group * blocks + block) * code_vectors + vector) * 32 + lane) * 4;
        planes.codes[start..start + 4].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    }
    bytes
}

fn decoded_bits(dtype: DType, block: &[u8]) -> [u32; BLOCK_COLUMNS] {
    let mut values = [0.0; BLOCK_COLUMNS];
    format(dtype).decode(block, &mut values);
    values.map(f32::to_bits)
}

#[test]
fn stacked_planes_hold_exactly_the_bytes_of_the_file() {
    for (seed, dtype) in DType::ALL.into_iter().enumerate() {
        for (blocks, part_rows) in [(1, vec![1]), (3, vec![32, 16]), (2, vec![5, 40, 20]), (5, vec![64])] {
            let mut words = Words(seed as u64);
            let columns = blocks * BLOCK_COLUMNS;
            let row_bytes = blocks * block_bytes(dtype);
            let parts: Vec<Vec<u8>> = part_rows.iter().map(|rows| words.bytes(rows * row_bytes)).collect();
            let refs = parts.iter().zip(&part_rows).map(|(bytes, &rows)| MatrixRef::new(dtype, rows, columns, bytes));
            let matrix = FusedMatrix::new(refs.map(Result::unwrap).collect(), Arrangement::Stacked).unwrap();
            let rows: usize = part_rows.iter().sum();
            assert_eq!((matrix.rows(), matrix.blocks(), matrix.groups()), (rows, blocks, rows.div_ceil(32)));

            let planes = pack(&matrix, 0..matrix.groups());
            let file = parts.concat();
            for row in 0..matrix.groups() * GROUP_ROWS {
                for block in 0..blocks {
                    let back = unpack(&planes, dtype, blocks, row, block);
                    if row >= rows {
                        assert!(back.iter().all(|&byte| byte == 0), "{dtype} row {row} is padding");
                        continue;
                    }
                    let start = row * row_bytes + block * block_bytes(dtype);
                    let original = &file[start..start + block_bytes(dtype)];
                    assert_eq!(back, original, "{dtype} row {row} block {block} seed {seed}");
                    assert_eq!(decoded_bits(dtype, &back), decoded_bits(dtype, original));
                }
            }
        }
    }
}

#[test]
fn gate_and_up_rows_alternate_by_sixteen() {
    for (seed, dtype) in DType::ALL.into_iter().enumerate() {
        for rows in [16, 48, 20] {
            let (blocks, mut words) = (3, Words(100 + seed as u64));
            let row_bytes = blocks * block_bytes(dtype);
            let [gate, up] = [(), ()].map(|()| words.bytes(rows * row_bytes));
            let part = |bytes| MatrixRef::new(dtype, rows, blocks * BLOCK_COLUMNS, bytes).unwrap();
            let matrix = FusedMatrix::new(vec![part(&gate), part(&up)], Arrangement::GateUp).unwrap();
            assert_eq!((matrix.rows(), matrix.groups()), (2 * rows, rows.div_ceil(16)));
            let planes = pack(&matrix, 0..matrix.groups());
            for group in 0..matrix.groups() {
                for lane in 0..GROUP_ROWS {
                    let (file, row) = (if lane < 16 { &gate } else { &up }, group * 16 + lane % 16);
                    let expected = match row < rows {
                        true => file[row * row_bytes..(row + 1) * row_bytes].to_vec(),
                        false => vec![0; row_bytes],
                    };
                    let back: Vec<u8> = (0..blocks)
                        .flat_map(|block| unpack(&planes, dtype, blocks, group * 32 + lane, block))
                        .collect();
                    assert_eq!(back, expected, "{dtype} group {group} lane {lane}");
                }
            }
        }
    }
}

#[test]
fn any_range_of_groups_equals_that_part_of_the_whole() {
    for dtype in DType::ALL {
        let (rows, blocks) = (150, 3);
        let bytes = Words(7).bytes(rows * blocks * block_bytes(dtype));
        let part = MatrixRef::new(dtype, rows, blocks * BLOCK_COLUMNS, &bytes).unwrap();
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

#[test]
fn matrices_that_cannot_be_joined_are_refused() {
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
}
