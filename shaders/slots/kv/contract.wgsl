// How keys and values are stored. The cache is an array of KvPair to those who write and of KvOctet to those who read.

alias KvPair = u32;
alias KvOctet = vec4<u32>;
struct Octet { low: vec4<f32>, high: vec4<f32> }
fn pack_pair(values: vec2<f32>) -> KvPair { return 0u; }
fn unpack_octet(stored: KvOctet) -> Octet { return Octet(vec4(0.0), vec4(0.0)); }
