//! Eight neighbouring elements of a head.

struct Octet { low: vec4<f32>, high: vec4<f32> }
