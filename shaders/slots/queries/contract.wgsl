// How attention reads queries: eight elements, from vector `at` of four on, which is even.

struct Octet { low: vec4<f32>, high: vec4<f32> }
fn query_octet(at: u32) -> Octet { return Octet(vec4(0.0), vec4(0.0)); }
