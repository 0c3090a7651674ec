//! What the host says about one submission: a header, then entries of four words. Mirror: src/layout/inputs.rs.

const NONE: u32 = 0xffffffffu;

struct StepHeader {
    row_count: u32,       // token rows of a step: decode rows first, then prompt chunks
    decode_count: u32,    // rows that take token and position from their slot
    tile_count: u32,      // attention tiles over prompt rows
    sample_count: u32,    // rows whose logits are wanted
    rows_at: u32,         // first entry of each section
    tiles_at: u32,
    samples_at: u32,
    updates_at: u32,
    update_count: u32,
    table_stride: u32,    // block table entries of a slot
    side_stride: u32,     // words of a slot's region in the side buffer: its tokens so far, then
    lists_at: u32,        // the lists of its request (see src/sampling/lists.rs), then
    mask_at: u32,         // a bit for each token that may come
    reserved: array<u32, 3>,
}

struct StepInputs {
    header: StepHeader,
    entries: array<vec4<u32>>,
}

@group(0) @binding(0) var<storage, read> inputs: StepInputs;
