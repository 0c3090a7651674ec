//! Everything that touches wgpu, and nothing about language models: no token, layer or sequence is known here.
//!
//! - [`profile`] describes an adapter as plain data; kernels choose their variants from it; [`quirks`] mends it where a
//!   driver promises what it does not keep.
//! - [`shader`] links WGSL files into one source; [`reflect`] reads bindings and sizes back out of it.
//! - [`device`] owns the device; [`memory`] creates and counts every buffer; [`registry`] compiles pipelines.
//! - [`kept`] is what stays on disk between runs.
//! - [`staging`] is memory that host and device take turns with; [`readback`] submits work and brings results back late.
//! - [`bundle`] is our software graph: a prepared list of dispatches that is encoded again for every step; `timing` says what
//!   each of them takes.

pub mod adapter;
pub mod bundle;
pub mod device;
pub mod kept;
pub mod memory;
pub mod profile;
pub mod quirks;
pub mod readback;
pub mod reflect;
pub mod registry;
pub mod shader;
mod sources;
pub mod staging;
mod timing;
pub mod upload;

pub use adapter::{AdapterChoice, FoundAdapter, list_adapters};
pub use bundle::{Bundle, Dispatch, Recorder};
pub use device::Gpu;
pub use memory::{Buffer, Slice};
pub use profile::{DeviceKind, Maker, MatrixTile, ProductShape, Profile};
pub use registry::Pipeline;
pub use shader::{Const, Variant};
pub use sources::shader_paths;
