// How attention reads keys and values. An entry is the row of one head at one position, counted as
// [block][kv head][position in block]; its elements are read by eight, and those of keys by sixteen where there are as many.

struct Octet { low: vec4<f32>, high: vec4<f32> }
fn key_octet(entry: u32, octet: u32) -> Octet { return Octet(vec4(0.0), vec4(0.0)); }
fn key_octets(entry: u32, pair: u32) -> array<Octet, 2> { return array(Octet(vec4(0.0), vec4(0.0)), Octet(vec4(0.0), vec4(0.0))); }
fn value_octet(entry: u32, octet: u32) -> Octet { return Octet(vec4(0.0), vec4(0.0)); }
