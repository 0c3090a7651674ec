// How keys and values are stored, in entries as slot kv reads them. Every lane of a workgroup keeps its share of an entry's quads of
// elements, and then finishes the entry.

fn keep_key(entry: u32, quad: u32, elements: vec4<f32>) {}
fn keep_value(entry: u32, quad: u32, elements: vec4<f32>) {}
fn finish_key(entry: u32, lane: u32) {}
fn finish_value(entry: u32, lane: u32) {}
