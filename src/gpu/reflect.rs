//! Reads bindings, workgroup memory and struct layouts out of linked WGSL, so that no Rust table repeats them.

use super::shader::Linked;
use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// What a shader binds and uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reflection {
    /// Bindings of group 0, ordered by number.
    pub bindings: Vec<Binding>,
    /// Workgroup memory in bytes.
    pub shared_bytes: u32,
    /// Structs by name: byte offset of each member, and total size.
    pub structs: BTreeMap<String, (Vec<(String, u32)>, u32)>,
}

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Name of the variable.
    pub name: String,
    /// `@binding` number.
    pub index: u32,
    /// How the shader uses it.
    pub kind: BindingKind,
}

/// How a shader uses a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingKind {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    ReadWrite,
    /// `var<uniform>`
    Uniform,
}

/// Parses `linked` and lists what it needs.
///
/// # Errors
/// The source does not parse (the message names the file and line), or binds outside group 0.
pub fn reflect(linked: &Linked) -> Result<Reflection> {
    let module = parse(linked)?;
    let context = module.to_ctx();
    let mut bindings = Vec::new();
    let mut shared_bytes = 0;
    for (_, variable) in module.global_variables.iter() {
        let kind = match variable.space {
            naga::AddressSpace::WorkGroup => {
                shared_bytes += module.types[variable.ty].inner.size(context);
                continue;
            }
            naga::AddressSpace::Storage { access } if access.contains(naga::StorageAccess::STORE) => {
                BindingKind::ReadWrite
            }
            naga::AddressSpace::Storage { .. } => BindingKind::Read,
            naga::AddressSpace::Uniform => BindingKind::Uniform,
            _ => continue,
        };
        let name = variable.name.clone().unwrap_or_default();
        match variable.binding {
            Some(naga::ResourceBinding { group: 0, binding }) => bindings.push(Binding { name, index: binding, kind }),
            _ => return Err(Error::bug(format!("{name} is not bound in group 0"))),
        }
    }
    bindings.sort_by_key(|binding| binding.index);
    if let Some(twice) = bindings.windows(2).find(|pair| pair[0].index == pair[1].index) {
        return Err(Error::bug(format!("{} and {} share a binding number", twice[0].name, twice[1].name)));
    }
    let structs = module.types.iter().filter_map(|(_, ty)| match &ty.inner {
        naga::TypeInner::Struct { members, span } => {
            let members = members.iter().map(|m| (m.name.clone().unwrap_or_default(), m.offset)).collect();
            Some((ty.name.clone()?, (members, *span)))
        }
        _ => None,
    });
    Ok(Reflection { bindings, shared_bytes, structs: structs.collect() })
}

/// Parses linked WGSL.
///
/// # Errors
/// With the file and line of the first mistake.
pub fn parse(linked: &Linked) -> Result<naga::Module> {
    let options =
        naga::front::wgsl::Options { parse_doc_comments: false, capabilities: naga::valid::Capabilities::all() };
    naga::front::wgsl::Frontend::new_with_options(options).parse(&linked.source).map_err(|error| {
        let place = error.location(&linked.source).map(|location| {
            let (path, line) = linked.locate(location.line_number as usize - 1);
            format!("shaders/{path}:{line}: ")
        });
        Error::bug(format!("{}{}", place.unwrap_or_default(), error.message()))
    })
}
