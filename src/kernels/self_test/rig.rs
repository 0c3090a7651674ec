//! A test bench for dispatches: inputs in, outputs back, with memory around each output that nobody may touch.

use crate::error::Result;
use crate::gpu::memory::{Slice, Use};
use crate::gpu::{Gpu, Recorder, Variant};
use crate::layout::StepHeader;
use bytemuck::Pod;

/// Words before and after each output: one alignment unit of any adapter.
const GUARD_WORDS: usize = 64;
/// What stands in them. As a float it is a NaN, so that a kernel that reads it shows it.
const GUARD: u32 = 0xffd3_c0de;

/// Buffers and dispatches on one device.
pub struct Rig<'a> {
    /// The device.
    pub gpu: &'a Gpu,
}

/// A buffer that a kernel writes.
pub struct Output {
    initial: Vec<u32>,
    words: usize,
    whole: Slice,
    /// What to bind. Its tail is guard, so that a write past the end lands there rather than in a driver's bound check.
    pub slice: Slice,
    /// The same without guard, for kernels that ask for the length of the array.
    pub exact: Slice,
}

/// One dispatch.
pub struct Dispatch<'a> {
    /// Pipeline.
    pub variant: Variant,
    /// (name in the shader, what it is bound to).
    pub arguments: Vec<(&'a str, &'a Slice)>,
    /// Workgroups.
    pub grid: [u32; 3],
}

impl<'a> Rig<'a> {
    /// A bench on `gpu`.
    pub fn new(gpu: &'a Gpu) -> Self {
        Self { gpu }
    }

    /// A buffer that kernels read.
    ///
    /// # Errors
    /// Out of memory.
    pub fn input<T: Pod>(&self, values: &[T]) -> Result<Slice> {
        self.filled(bytemuck::cast_slice(values), Use::Storage)
    }

    /// Parameters of a dispatch.
    ///
    /// # Errors
    /// Out of memory.
    pub fn params<T: Pod>(&self, value: &T) -> Result<Slice> {
        self.filled(bytemuck::bytes_of(value), Use::Uniform)
    }

    /// Step inputs: a header, then entries.
    ///
    /// # Errors
    /// Out of memory.
    pub fn step_inputs(&self, header: &StepHeader, entries: &[[u32; 4]]) -> Result<Slice> {
        let mut words: Vec<u32> = bytemuck::cast_slice(std::slice::from_ref(header)).to_vec();
        words.extend(entries.iter().flatten());
        words.resize(words.len().max(24), 0);
        self.input(&words)
    }

    fn filled(&self, bytes: &[u8], purpose: Use) -> Result<Slice> {
        let buffer = self.gpu.memory.create("self-test input", bytes.len() as u64, purpose)?;
        self.gpu.write(&buffer, bytes);
        Ok(buffer.slice(0, (bytes.len() as u64).max(16).next_multiple_of(16)))
    }

    /// A guarded buffer that kernels write, holding `values` before each run.
    ///
    /// # Errors
    /// Out of memory.
    pub fn output<T: Pod>(&self, values: &[T]) -> Result<Output> {
        let values: &[u32] = bytemuck::cast_slice(values);
        let words = values.len();
        let padded = words.next_multiple_of(4);
        let mut initial = vec![GUARD; GUARD_WORDS];
        initial.extend(values);
        initial.resize(GUARD_WORDS + padded + GUARD_WORDS, GUARD);
        let bytes = 4 * initial.len() as u64;
        let buffer = self.gpu.memory.create("self-test output", bytes, Use::Storage)?;
        let at = 4 * GUARD_WORDS as u64;
        Ok(Output {
            slice: buffer.slice(at, bytes - at),
            exact: buffer.slice(at, 4 * words as u64),
            whole: buffer.whole(),
            initial,
            words,
        })
    }

    /// Runs `dispatches` twice from the same beginning and returns the words of each output.
    ///
    /// # Errors
    /// The device failed, the runs differ, or memory around an output was written.
    pub fn run(&self, dispatches: &[Dispatch<'_>], outputs: &[&Output]) -> std::result::Result<Vec<Vec<u32>>, String> {
        let first = self.run_once(dispatches, outputs).map_err(|error| error.to_string())?;
        let second = self.run_once(dispatches, outputs).map_err(|error| error.to_string())?;
        for (index, (first, second)) in first.iter().zip(&second).enumerate() {
            if let Some(at) = first.iter().zip(second).position(|(a, b)| a != b) {
                let (a, b) = (first[at], second[at]);
                return Err(format!("two runs differ: output {index} word {at} is {a:#x}, then {b:#x}"));
            }
        }
        Self::unguarded(&first, outputs)
    }

    /// Runs `dispatches` once and returns the words of each output; for many runs whose results are counted.
    ///
    /// # Errors
    /// The device failed, or memory around an output was written.
    pub fn run_single(
        &self,
        dispatches: &[Dispatch<'_>],
        outputs: &[&Output],
    ) -> std::result::Result<Vec<Vec<u32>>, String> {
        let found = self.run_once(dispatches, outputs).map_err(|error| error.to_string())?;
        Self::unguarded(&found, outputs)
    }

    fn unguarded(found: &[Vec<u32>], outputs: &[&Output]) -> std::result::Result<Vec<Vec<u32>>, String> {
        let unguarded = found.iter().zip(outputs).enumerate().map(|(index, (found, output))| {
            let (before, rest) = found.split_at(GUARD_WORDS);
            let (inner, after) = rest.split_at(output.words);
            let broken = before.iter().chain(after).position(|&word| word != GUARD);
            match broken {
                Some(at) => Err(format!("output {index}: word {at} of the memory around it was written")),
                None => Ok(inner.to_vec()),
            }
        });
        unguarded.collect()
    }

    fn run_once(&self, dispatches: &[Dispatch<'_>], outputs: &[&Output]) -> Result<Vec<Vec<u32>>> {
        let total: u64 = outputs.iter().map(|output| output.whole.bytes).sum();
        let results = self.gpu.memory.create("self-test results", total, Use::Storage)?;
        let mut recorder = Recorder::default();
        for Dispatch { variant, arguments, grid } in dispatches {
            let pipeline = self.gpu.registry.get(variant)?;
            recorder.dispatch(self.gpu, variant.kernel, &pipeline, arguments, *grid)?;
        }
        let mut at = 0;
        for output in outputs {
            self.gpu.write(&output.whole.buffer, bytemuck::cast_slice(&output.initial));
            recorder.copy(&output.whole, &results, at);
            at += output.whole.bytes;
        }
        let bytes = self.gpu.run(&recorder.finish(), &results.slice(0, total))?;
        // Readback memory need not be aligned for words.
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
        let mut rest = &words[..];
        let pieces = outputs.iter().map(|output| {
            let (piece, tail) = rest.split_at(output.initial.len());
            rest = tail;
            piece.to_vec()
        });
        Ok(pieces.collect())
    }
}

/// Words as floats.
pub fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&word| f32::from_bits(word)).collect()
}

/// For errors of the device inside a case.
pub fn failed(error: crate::error::Error) -> String {
    error.to_string()
}
