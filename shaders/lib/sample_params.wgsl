//! Parameters of both passes of the sampler. Mirror: src/kernels/sample.rs.

struct SampleParams {
    vocab_size: u32,
    logits_stride: u32,
    block_count: u32,     // blocks of the vocabulary
    first_sample: u32,    // row 0 of the logits buffer
}
