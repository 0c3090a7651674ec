//! The WGSL linker. A kernel is one plain WGSL file whose first lines say what it needs:
//!
//! ```wgsl
//! //! kernel norm
//! //! slot reduce            <- one of shaders/slots/reduce/*.wgsl, chosen by the variant
//! //! use lib/step_inputs    <- shaders/lib/step_inputs.wgsl
//! //! needs f16              <- becomes `enable f16;` above everything else
//! ```
//!
//! The linked source is: `const` lines from the variant, used files once in depth-first order, slot files, the kernel.
//! Anything unknown, missing or left over is an error, never a warning. Source size is the sum of the axes, not their
//! product, and a line of the result can be traced back to its file.

use super::sources;
use crate::error::{Error, Result};
use std::fmt::Write;

/// The identity of a pipeline: kernel, implementation of each slot, constants, workgroup size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// `shaders/kernels/<kernel>.wgsl`.
    pub kernel: &'static str,
    /// Implementation for each slot.
    pub slots: Vec<(&'static str, &'static str)>,
    /// Constants, in the order in which they are written.
    pub consts: Vec<(&'static str, Const)>,
    /// Workgroup size; kernels see it as `WG_X`, `WG_Y`, `WG_Z`.
    pub workgroup: [u32; 3],
}

/// A constant. Floats are compared by their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Const {
    /// `u32`
    U32(u32),
    /// `f32`, as bits
    F32(u32),
    /// `bool`
    Bool(bool),
}

impl Const {
    /// A float constant.
    pub fn f32(value: f32) -> Self {
        Self::F32(value.to_bits())
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kernel)?;
        for (_, implementation) in &self.slots {
            write!(f, " {implementation}")?;
        }
        for (name, value) in &self.consts {
            match value {
                Const::U32(value) => write!(f, " {name}={value}")?,
                Const::F32(bits) => write!(f, " {name}={}", f32::from_bits(*bits))?,
                Const::Bool(value) => write!(f, " {name}={value}")?,
            }
        }
        write!(f, " {:?}", self.workgroup)
    }
}

/// A linked shader.
#[derive(Clone, Debug)]
pub struct Linked {
    /// Complete WGSL.
    pub source: String,
    /// For each part: the line of `source` where it begins (from 0), and its path.
    pub parts: Vec<(usize, String)>,
}

impl Linked {
    /// File and line (from 1) that line `line` (from 0) of the linked source came from.
    pub fn locate(&self, line: usize) -> (&str, usize) {
        match self.parts.iter().rev().find(|(start, _)| *start <= line) {
            Some((start, path)) => (path, line - start + 1),
            None => ("constants", line + 1),
        }
    }
}

/// What a file's `//!` lines ask for.
#[derive(Default)]
struct Header<'a> {
    kernel: Option<&'a str>,
    slots: Vec<&'a str>,
    uses: Vec<&'a str>,
    needs: Vec<&'a str>,
}

fn header(source: &str) -> Header<'_> {
    let mut header = Header::default();
    for line in source.lines().map_while(|line| line.strip_prefix("//!")) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("kernel") => header.kernel = words.next(),
            Some("slot") => header.slots.extend(words),
            Some("use") => header.uses.extend(words),
            Some("needs") => header.needs.extend(words),
            _ => {}
        }
    }
    header
}

/// Joins the files that `variant` names.
///
/// # Errors
/// An unknown file, a cycle, a slot without implementation, or an implementation that no file asked for.
pub fn link(variant: &Variant) -> Result<Linked> {
    let linked = Linked { source: String::new(), parts: Vec::new() };
    let mut linker = Linker { variant, linked, open: Vec::new(), needs: Vec::new() };
    let mut constants = String::new();
    for (name, value) in &variant.consts {
        match value {
            Const::U32(value) => writeln!(constants, "const {name}: u32 = {value}u;"),
            Const::F32(bits) => writeln!(constants, "const {name}: f32 = {:?}f;", f32::from_bits(*bits)),
            Const::Bool(value) => writeln!(constants, "const {name}: bool = {value};"),
        }
        .expect("writing to a string cannot fail");
    }
    for (name, value) in ["WG_X", "WG_Y", "WG_Z"].iter().zip(variant.workgroup) {
        writeln!(constants, "const {name}: u32 = {value}u;").expect("writing to a string cannot fail");
    }
    linker.linked.source = constants;
    let kernel = format!("kernels/{}", variant.kernel);
    linker.add(&kernel)?;
    if !linker.needs.is_empty() {
        let lines = linker.needs.len();
        let enables: String = linker.needs.iter().map(|name| format!("enable {name};\n")).collect();
        linker.linked.source.insert_str(0, &enables);
        linker.linked.parts.iter_mut().for_each(|(line, _)| *line += lines);
    }
    for (slot, implementation) in &variant.slots {
        let path = format!("slots/{slot}/{implementation}.wgsl");
        if !linker.linked.parts.iter().any(|(_, part)| *part == path) {
            return Err(Error::bug(format!("{}: nothing uses slot {slot}", variant.kernel)));
        }
    }
    Ok(linker.linked)
}

struct Linker<'a> {
    variant: &'a Variant,
    linked: Linked,
    open: Vec<String>,
    /// Extensions of WGSL.
    needs: Vec<String>,
}

impl Linker<'_> {
    fn add(&mut self, name: &str) -> Result<()> {
        let path = format!("{name}.wgsl");
        if self.linked.parts.iter().any(|(_, part)| *part == path) {
            return Ok(());
        }
        if self.open.contains(&path) {
            return Err(Error::bug(format!("{path} uses itself, through {}", self.open.join(", "))));
        }
        let source = sources::read(&path)?;
        let header = header(&source);
        for name in &header.needs {
            if !self.needs.iter().any(|known| known == name) {
                self.needs.push((*name).to_owned());
            }
        }
        self.open.push(path.clone());
        for used in &header.uses {
            self.add(used)?;
        }
        for slot in &header.slots {
            let Some((_, implementation)) = self.variant.slots.iter().find(|(name, _)| name == slot) else {
                return Err(Error::bug(format!("{path} needs slot {slot}, which {} leaves open", self.variant.kernel)));
            };
            self.add(&format!("slots/{slot}/{implementation}"))?;
        }
        self.open.pop();
        let line = self.linked.source.lines().count();
        self.linked.source.push_str(&source);
        if !source.ends_with('\n') {
            self.linked.source.push('\n');
        }
        self.linked.parts.push((line, path));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norm(slots: Vec<(&'static str, &'static str)>) -> Variant {
        let slots = [vec![("norm", "rms"), ("rows_out", "f32")], slots].concat();
        Variant { kernel: "norm", slots, consts: vec![("GATHER", Const::Bool(false))], workgroup: [8, 1, 1] }
    }

    #[test]
    fn linking_reports_open_and_unused_slots() {
        let open = link(&norm(vec![])).unwrap_err().to_string();
        assert!(open.contains("needs slot reduce"), "{open}");
        let unused = link(&norm(vec![("reduce", "workgroup"), ("kv", "f16")])).unwrap_err().to_string();
        assert!(unused.contains("nothing uses slot kv"), "{unused}");
        let unknown = link(&norm(vec![("reduce", "magic")])).unwrap_err().to_string();
        assert!(unknown.contains("slots/reduce/magic.wgsl"), "{unknown}");
    }

    #[test]
    fn lines_lead_back_to_their_file() {
        let linked = link(&norm(vec![("reduce", "workgroup")])).unwrap();
        let line = linked.source.lines().position(|line| line.starts_with("//! kernel norm")).unwrap();
        assert_eq!(linked.locate(line), ("kernels/norm.wgsl", 1));
        assert_eq!(linked.locate(0), ("constants", 1));
    }
}
