//! KV blocks on the move: to the host, back, and from block to block.
//!
//! A block lies in pieces, one in the keys and one in the values of each layer. Moving means copies between the pieces and a
//! buffer that holds blocks whole: a mappable one for the host, one on the device for copies within it (wgpu refuses to copy
//! inside one buffer). The copies run before a submission's steps. Staging goes back and forth with submissions:
//! - what is saved is on the host when the submission lands, and goes to the pool then;
//! - what is loaded leaves the pool when the plan is submitted, while earlier submissions run.
//!
//! A plan that moves more than the staging holds does so in rounds that are waited for, save for the last.
//! Nothing is allocated on the way except by wgpu itself.

mod host_pool;
mod pieces;

use self::host_pool::HostPool;
use self::pieces::{Part, Run, each_place, find_runs};
use crate::base::{BlockId, HostBlockId};
use crate::error::{Error, Result};
use crate::gpu::memory::{Buffer, Slice, Use};
use crate::gpu::staging::{Direction, Staging};
use crate::gpu::{Bundle, Gpu};
use crate::sched::plan::{BlockLoad, StepPlan};
use std::time::Instant;

/// Bytes of staging in each direction for one submission: what moves while a step runs.
const WINDOW_BYTES: u64 = 32 << 20;
/// Bytes of device memory through which blocks are copied; more copies take turns in it.
const SCRATCH_BYTES: u64 = 4 << 20;
/// Blocks that are moved to learn what moving costs.
const TRIAL_BLOCKS: usize = 4;

/// See the module.
pub(super) struct Moves {
    parts: Vec<Part>,
    block_bytes: u64,
    pool: HostPool,
    /// Blocks that go through staging at a time.
    window: usize,
    /// Staging that nobody uses; as much as submissions may be in flight, or none without a pool.
    outgoing: Vec<Staging>,
    incoming: Vec<Staging>,
    scratch: Buffer,
    /// Copies of the plan that is being submitted.
    prelude: Bundle,
    runs: Vec<Run>,
    spare: Vec<Vec<HostBlockId>>,
    cost: Cost,
}

/// What one submission moves, from [`Moves::prepare`] to [`Moves::land`].
#[derive(Default)]
pub(super) struct Moving {
    /// Where the blocks in `outgoing` go.
    hosts: Vec<HostBlockId>,
    outgoing: Option<Staging>,
    incoming: Option<Staging>,
    /// Whether anything moves at all.
    pub(super) any: bool,
}

impl Moving {
    /// The buffers that must be the host's before the submission lands.
    pub(super) fn riders(&self) -> [Option<Staging>; 2] {
        [self.outgoing.clone(), self.incoming.clone()]
    }
}

/// Microseconds per block, one way; 0 where nothing is known.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// Between the device and staging.
    device: f32,
    /// Between staging and the pool.
    host: f32,
}

impl Moves {
    /// Moves blocks of `kv`, the (keys, values) of each layer with `block_count` blocks, and keeps up to `pool_bytes` of them
    /// on the host. `depth` submissions may be in flight.
    ///
    /// # Errors
    /// Out of memory, on the device or on the host.
    pub(super) fn new(
        gpu: &Gpu,
        kv: &[(Slice, Slice)],
        block_count: usize,
        pool_bytes: u64,
        depth: usize,
    ) -> Result<Self> {
        let mut block_bytes = 0;
        let mut parts = Vec::with_capacity(2 * kv.len());
        for memory in kv.iter().flat_map(|(keys, values)| [keys, values]) {
            let bytes = memory.bytes / block_count.max(1) as u64;
            if bytes * block_count as u64 != memory.bytes || !bytes.is_multiple_of(4) {
                return Err(Error::bug(format!("{block_count} KV blocks do not share {} bytes evenly", memory.bytes)));
            }
            parts.push(Part { memory: memory.clone(), bytes, before: block_bytes });
            block_bytes += bytes;
        }
        let pool = HostPool::new(pool_bytes, block_bytes)?;
        let blocks_in = |bytes: u64, most: usize| (bytes / block_bytes.max(1)).clamp(1, most.max(1) as u64);
        let window = blocks_in(WINDOW_BYTES, pool.block_count());
        let staging = |direction| {
            let depth = if pool.block_count() > 0 { depth } else { 0 };
            (0..depth)
                .map(|_| Staging::new(gpu, "moving blocks", window * block_bytes, direction))
                .collect::<Result<_>>()
        };
        let scratch = blocks_in(SCRATCH_BYTES, block_count) * block_bytes;
        Ok(Self {
            outgoing: staging(Direction::ToHost)?,
            incoming: staging(Direction::ToDevice)?,
            scratch: gpu.memory.create("copied blocks", scratch, Use::Storage)?,
            parts,
            block_bytes,
            pool,
            window: window as usize,
            prelude: Bundle::default(),
            runs: Vec::new(),
            spare: Vec::new(),
            cost: Cost::default(),
        })
    }

    /// Blocks that the host keeps.
    pub(super) fn host_blocks(&self) -> u32 {
        self.pool.block_count() as u32
    }

    /// Microseconds to move a block, one way; 0 if unknown.
    pub(super) fn micros_per_block(&self) -> f32 {
        self.cost.device + self.cost.host
    }

    /// Lowers the number of blocks that go through staging at a time; for tests.
    pub(super) fn limit_window(&mut self, blocks: usize) {
        self.window = blocks.clamp(1, self.window);
    }

    /// What runs before the update and the steps of the plan last prepared.
    pub(super) fn prelude(&self) -> &Bundle {
        &self.prelude
    }

    /// Encodes the moves of `plan` and runs what goes beyond the staging. `earlier` are the submissions in flight, oldest
    /// first.
    ///
    /// # Errors
    /// The device was lost, or the plan loads what was never saved (a bug of the scheduler).
    pub(super) fn prepare<'a>(
        &mut self,
        gpu: &Gpu,
        plan: &StepPlan,
        earlier: impl Iterator<Item = &'a mut Moving>,
    ) -> Result<Moving> {
        self.prelude.clear();
        let any = !(plan.saves.is_empty() && plan.loads.is_empty() && plan.copies.is_empty());
        let mut moving = Moving { any, ..Moving::default() };
        if !plan.saves.is_empty() {
            self.save(gpu, plan, earlier, &mut moving)?;
        }
        if !plan.loads.is_empty() {
            let staging = take(&mut self.incoming)?;
            self.load(gpu, &plan.loads, &staging)?;
            moving.incoming = Some(staging);
        }
        let scratch = self.scratch.clone();
        for round in plan.copies.chunks((scratch.bytes() / self.block_bytes) as usize) {
            self.encode(Way::Out, round.iter().map(|copy| copy.source), &scratch);
            self.encode(Way::In, round.iter().map(|copy| copy.target), &scratch);
        }
        Ok(moving)
    }

    fn save<'a>(
        &mut self,
        gpu: &Gpu,
        plan: &StepPlan,
        mut earlier: impl Iterator<Item = &'a mut Moving>,
        moving: &mut Moving,
    ) -> Result<()> {
        let staging = take(&mut self.outgoing)?;
        moving.hosts = self.spare.pop().unwrap_or_default();
        let mut rounds = plan.saves.chunks(self.window).peekable();
        let mut idle = false;
        while let Some(round) = rounds.next() {
            self.encode(Way::Out, round.iter().map(|save| save.block), staging.buffer());
            moving.hosts.extend(round.iter().map(|save| save.host));
            if rounds.peek().is_none() {
                break;
            }
            self.run_round(gpu, &staging, idle.then_some(round.len()))?;
            idle = true;
            // Submissions before this one may save to the same places; they have run, so theirs comes first.
            earlier.by_ref().try_for_each(|earlier| self.settle(earlier))?;
            moving.outgoing = Some(staging.clone());
            self.settle(moving)?;
            staging.release();
        }
        moving.outgoing = Some(staging);
        Ok(())
    }

    fn load(&mut self, gpu: &Gpu, loads: &[BlockLoad], staging: &Staging) -> Result<()> {
        let mut rounds = loads.chunks(self.window).peekable();
        let mut idle = false;
        while let Some(round) = rounds.next() {
            self.fill(round.iter().map(|load| load.host), staging)?;
            self.encode(Way::In, round.iter().map(|load| load.block), staging.buffer());
            if rounds.peek().is_some() {
                self.run_round(gpu, staging, idle.then_some(round.len()))?;
                idle = true;
            }
        }
        Ok(())
    }

    /// Runs what is encoded and waits for it. `alone` is the number of blocks, where nothing else is in the queue.
    fn run_round(&mut self, gpu: &Gpu, staging: &Staging, alone: Option<usize>) -> Result<()> {
        let started = Instant::now();
        gpu.run_staged(&self.prelude, staging)?;
        self.prelude.clear();
        if let Some(count) = alone {
            learn(&mut self.cost.device, started, count);
        }
        Ok(())
    }

    /// Encodes the copies between the pieces of `blocks` and `whole`, where they lie part by part.
    fn encode(&mut self, way: Way, blocks: impl ExactSizeIterator<Item = BlockId>, whole: &Buffer) {
        let count = blocks.len() as u64;
        find_runs(blocks, &mut self.runs);
        for part in &self.parts {
            for run in &self.runs {
                let piece = part.memory.offset + u64::from(run.block.0) * part.bytes;
                let place = part.before * count + run.at * part.bytes;
                let (bytes, memory) = (run.count * part.bytes, &part.memory.buffer);
                match way {
                    Way::Out => self.prelude.copy(memory, piece, whole, place, bytes),
                    Way::In => self.prelude.copy(whole, place, memory, piece, bytes),
                }
            }
        }
    }

    /// Copies blocks of the pool to staging.
    fn fill(&mut self, hosts: impl ExactSizeIterator<Item = HostBlockId>, staging: &Staging) -> Result<()> {
        let started = Instant::now();
        let count = hosts.len();
        let mut missing = None;
        staging.fill(count as u64 * self.block_bytes, |write| {
            for (at, host) in hosts.enumerate() {
                match self.pool.get(host) {
                    Some(block) => each_place(&self.parts, at, count, |part, place| write(place.start, &block[part])),
                    None => missing = Some(host),
                }
            }
        })?;
        if let Some(host) = missing {
            return Err(Error::bug(format!("host block {host} is loaded, but was never saved")));
        }
        learn(&mut self.cost.host, started, count);
        Ok(())
    }

    /// Copies to the pool what a submission that has run left in staging.
    fn settle(&mut self, moving: &mut Moving) -> Result<()> {
        let Some(staging) = &moving.outgoing else { return Ok(()) };
        let count = moving.hosts.len();
        if count == 0 {
            return Ok(());
        }
        let started = Instant::now();
        staging.read(count as u64 * self.block_bytes, |bytes| {
            for (at, host) in moving.hosts.iter().enumerate() {
                let block = self.pool.get_mut(*host);
                each_place(&self.parts, at, count, |part, place| block[part].copy_from_slice(&bytes[place]));
            }
        })?;
        moving.hosts.clear();
        learn(&mut self.cost.host, started, count);
        Ok(())
    }

    /// Takes what a submission that has landed left in staging.
    ///
    /// # Errors
    /// The device was lost.
    pub(super) fn land(&mut self, mut moving: Moving) -> Result<()> {
        self.settle(&mut moving)?;
        if let Some(staging) = moving.outgoing {
            staging.release();
            self.outgoing.push(staging);
            self.spare.push(moving.hosts);
        }
        self.incoming.extend(moving.incoming);
        Ok(())
    }

    /// Moves a few blocks there and back, to learn what that costs and to have everything used once. Changes no block on
    /// the device. Only while nothing is in flight.
    ///
    /// # Errors
    /// The device was lost.
    pub(super) fn warm_up(&mut self, gpu: &Gpu, block_count: usize) -> Result<()> {
        let count = TRIAL_BLOCKS.min(self.window).min(block_count).min(self.pool.block_count());
        if count == 0 {
            return Ok(());
        }
        let blocks = || (0..count as u32).map(BlockId);
        // The first round pays for clearing memory; by the third, that has no weight left.
        for _ in 0..3 {
            for at in 0..self.outgoing.len() {
                let (outgoing, incoming) = (self.outgoing[at].clone(), self.incoming[at].clone());
                self.prelude.clear();
                self.encode(Way::Out, blocks(), outgoing.buffer());
                self.run_round(gpu, &outgoing, Some(count))?;
                let hosts = (0..count as u32).map(HostBlockId);
                let mut moving =
                    Moving { hosts: hosts.clone().collect(), outgoing: Some(outgoing.clone()), ..Moving::default() };
                self.settle(&mut moving)?;
                outgoing.release();
                self.fill(hosts, &incoming)?;
                self.encode(Way::In, blocks(), incoming.buffer());
                self.run_round(gpu, &incoming, Some(count))?;
            }
        }
        Ok(())
    }
}

/// Between the pieces of blocks and a buffer that holds them whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

fn take(free: &mut Vec<Staging>) -> Result<Staging> {
    free.pop().ok_or_else(|| Error::bug("a plan moves blocks to or from the host, but no staging is left for it"))
}

/// Halfway to what was seen: one hiccup passes.
fn learn(known: &mut f32, started: Instant, count: usize) {
    let seen = started.elapsed().as_secs_f32() * 1e6 / count.max(1) as f32;
    *known = if *known == 0.0 { seen } else { (*known + seen) / 2.0 };
}
