// The plane of codes in vectors of 16 bytes: vector `at`, or vectors `at` and `at + 1` for an even `at`.

fn code_vector(at: u32) -> vec4<u32> { return vec4(0u); }
fn code_pair(at: u32) -> array<vec4<u32>, 2> { return array(vec4(0u), vec4(0u)); }
