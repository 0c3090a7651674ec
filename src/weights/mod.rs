//! Model files: safetensors and GGUF, and the plan that turns their tensors into device matrices.

pub mod source;
