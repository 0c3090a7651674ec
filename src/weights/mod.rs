//! Model files: safetensors and GGUF, and the plan that turns their tensors into device matrices.
//!
//! [`source`] is what both kinds of file look like, [`binding`] says where a role of the model lies in it, [`tensors`]
//! finds them, [`matrix`] reads rows, [`pack`] repacks matrices for the device and [`shards`] cuts them to what a
//! binding of the device can hold.

pub mod binding;
pub mod gguf;
mod mapping;
pub mod matrix;
pub mod pack;
pub mod safetensors;
pub mod shards;
pub mod source;
pub mod tensors;

pub use mapping::FileBytes;
