//! Damaged and lying model files: always an error, never a panic, never memory for what a file only claims to hold.

mod tiny_files;

use octavo::error::ErrorKind;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tiny_files::{
    Gguf, open_gguf, open_safetensors, read_everything, safetensors, tiny_config, tiny_tensors, with_header,
};

/// Numbers that overflow sums, products and allocations, or sit next to a limit.
const HOSTILE: [u64; 18] = [
    0,
    1,
    2,
    3,
    7,
    31,
    33,
    0x7f,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 40,
    1 << 61,
    (1 << 62) + 1,
    i64::MAX as u64,
    u64::MAX - 7,
    u64::MAX,
];

#[derive(Clone, Debug)]
enum Damage {
    /// Cut to this share of 65536 of the length.
    Truncate(u16),
    /// Overwrite the field with this index.
    Field(prop::sample::Index, u64),
    /// Change a byte.
    Byte(prop::sample::Index, u8),
    /// Remove some bytes.
    Remove(prop::sample::Index, usize),
    /// Repeat some bytes.
    Repeat(prop::sample::Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    use prop::sample::Index;
    prop_oneof![
        1 => any::<u16>().prop_map(Damage::Truncate),
        6 => (any::<Index>(), prop::sample::select(&HOSTILE[..])).prop_map(|(field, to)| Damage::Field(field, to)),
        2 => (any::<Index>(), 0..100_u64).prop_map(|(field, to)| Damage::Field(field, to)),
        3 => (any::<Index>(), any::<u8>()).prop_map(|(at, to)| Damage::Byte(at, to)),
        1 => (any::<Index>(), 1..64_usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        1 => (any::<Index>(), 1..64_usize).prop_map(|(at, count)| Damage::Repeat(at, count)),
    ]
}

/// Applies damage; bytes are hit in the first `header` ones only, where they matter.
fn apply(bytes: &mut Vec<u8>, fields: &[(usize, usize)], header: usize, damage: &Damage) {
    let header = header.min(bytes.len());
    if header == 0 {
        return;
    }
    match damage {
        Damage::Truncate(share) => bytes.truncate(bytes.len() * usize::from(*share) / 65536),
        Damage::Field(field, to) => {
            let (at, width) = *field.get(fields);
            if let Some(place) = bytes.get_mut(at..at + width) {
                place.copy_from_slice(&to.to_le_bytes()[..width]);
            }
        }
        Damage::Byte(at, to) => bytes[at.index(header)] = *to,
        Damage::Remove(at, count) => {
            let at = at.index(header);
            bytes.drain(at..(at + count).min(header));
        }
        Damage::Repeat(at, count) => {
            let at = at.index(header);
            let piece = bytes[at..(at + count).min(header)].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

#[test]
fn the_undamaged_files_open() {
    read_everything(&Gguf::tiny_llama().open().unwrap());
    read_everything(&open_safetensors(&tiny_config(), safetensors(&tiny_tensors())).unwrap());
}

#[test]
fn every_truncation_is_an_error() {
    let gguf = Gguf::tiny_llama().write().bytes;
    let other = safetensors(&tiny_tensors());
    for length in (0..gguf.len()).step_by(3).chain([gguf.len() - 1]) {
        let error = open_gguf(gguf[..length].to_vec()).err().unwrap_or_else(|| panic!("{length} bytes opened"));
        assert_eq!(error.kind(), ErrorKind::Load, "{error}");
    }
    for length in (0..other.len()).step_by(17).chain([other.len() - 1]) {
        let error = open_safetensors(&tiny_config(), other[..length].to_vec()).err();
        assert_eq!(error.unwrap_or_else(|| panic!("{length} bytes opened")).kind(), ErrorKind::Load);
    }
}

#[test]
fn huge_claims_are_refused_before_memory_is_asked_for() {
    let written = Gguf::tiny_llama().write();
    // Tensor count, pair count and the length of the first key.
    for field in [1, 2, 3] {
        for claim in [1 << 33, 1 << 60, u64::MAX] {
            let mut bytes = written.bytes.clone();
            let (at, width) = written.fields[field];
            bytes[at..at + width].copy_from_slice(&u64::to_le_bytes(claim));
            let message = open_gguf(bytes).err().expect("refused").to_string();
            assert!(message.contains(&claim.to_string()) && message.contains("room"), "{message}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_gguf_never_panics(all in prop::collection::vec(damage(), 1..4)) {
        let written = Gguf::tiny_llama().write();
        let mut bytes = written.bytes.clone();
        all.iter().for_each(|damage| apply(&mut bytes, &written.fields, written.data_start, damage));
        match open_gguf(bytes) {
            Ok(files) => read_everything(&files),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Load, "{}", error),
        }
    }

    #[test]
    fn damaged_safetensors_never_panic(
        all in prop::collection::vec(damage(), 0..3),
        number in prop::option::of((any::<prop::sample::Index>(), prop::sample::select(&HOSTILE[..]))),
    ) {
        let mut bytes = safetensors(&tiny_tensors());
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        if let Some((which, to)) = number {
            let text = String::from_utf8(bytes[8..8 + header].to_vec()).unwrap();
            bytes = with_header(&replace_number(&text, which, to), &bytes[8 + header..]);
        }
        all.iter().for_each(|damage| apply(&mut bytes, &[(0, 8)], 8 + header, damage));
        match open_safetensors(&tiny_config(), bytes) {
            Ok(files) => read_everything(&files),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Load, "{}", error),
        }
    }
}

/// Replaces one of the decimal numbers in `text`.
fn replace_number(text: &str, which: prop::sample::Index, to: u64) -> String {
    let is_digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let starts: Vec<usize> = (1..text.len()).filter(|&at| is_digit(at) && !is_digit(at - 1)).collect();
    let start = *which.get(&starts);
    let end = (start..).find(|&at| !is_digit(at)).expect("the text ends");
    format!("{}{to}{}", &text[..start], &text[end..])
}

#[test]
fn any_value_of_any_type_in_a_configuration_is_handled() {
    let file = safetensors(&tiny_tensors());
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(3),
        json!(1_u64 << 40),
        json!(u64::MAX),
        json!(1.5),
        json!(1e308),
        json!("text"),
        json!([]),
        json!(["LlamaForCausalLM", 3]),
        json!({"rope_type": "linear", "factor": 0}),
        json!({"rope_type": "llama3", "factor": 8}),
    ];
    let Json::Object(config) = tiny_config() else { unreachable!("it is an object") };
    let mut refused = 0;
    for key in config.keys() {
        for value in &values {
            let mut config = config.clone();
            config.insert(key.clone(), value.clone());
            match open_safetensors(&Json::Object(config), file.clone()) {
                Ok(files) => read_everything(&files),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Load, "{key} = {value}: {error}");
                    refused += 1;
                }
            }
        }
    }
    // Sizes, which are eight of the keys, allow one value at most.
    assert!(refused > 8 * (values.len() - 2), "{refused}");
}
