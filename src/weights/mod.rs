//! Model files: safetensors and GGUF, and the plan that turns their tensors into device matrices.
//!
//! [`source`] is what both kinds of file look like, [`tensors`] gives each tensor its role in the model, [`pack`]
//! repacks matrices for the device and [`shards`] cuts them to what a binding can hold.

pub mod gguf;
mod mapping;
pub mod pack;
pub mod safetensors;
pub mod shards;
pub mod source;
pub mod tensors;

pub use mapping::FileBytes;
