//! What `octavo bench` asks a runner: that it measures the step it is asked for, whole and by kernels.

#[path = "common/golden.rs"]
mod golden;

use octavo::config::{EngineConfig, EngineOptions};
use octavo::gpu::{Gpu, MatrixTile, Profile, list_adapters};
use octavo::model::files::ModelFiles;
use octavo::runner::ModelRunner;
use octavo::runner::wgpu::{Method, WgpuRunner, Workload};

fn files() -> ModelFiles {
    ModelFiles::open(&golden::path("tiny-llama")).unwrap()
}

fn runner(gpu: Option<Gpu>) -> WgpuRunner {
    let files = files();
    let options = EngineOptions { max_num_seqs: 4, max_num_batched_tokens: 64, ..EngineOptions::default() };
    let config = EngineConfig::new(options, &files.spec).unwrap();
    match gpu {
        Some(gpu) => WgpuRunner::on_device(gpu, &files, &config, &mut |_| {}).unwrap(),
        None => WgpuRunner::load(&files, &config, &mut |_| {}).unwrap(),
    }
}

#[test]
fn kernels_are_all_of_a_step_and_products_do_all_of_its_multiplications() {
    let spec = files().spec;
    let mut runner = runner(None);
    let up = |count: usize| count.next_multiple_of(32) as u64;
    let layers: u64 = spec
        .layers
        .iter()
        .map(|layer| {
            let attn = &layer.attn;
            let (query, kv) = (attn.query_width(), attn.kv_width());
            let hidden = up(spec.hidden_size);
            let mlp = up(layer.mlp.intermediate_size);
            hidden * up(query + 2 * kv) + hidden * up(query) + 2 * hidden * mlp + hidden * mlp
        })
        .sum();
    let head = up(spec.hidden_size) * up(spec.vocab_size);
    for (workload, rows, samples) in
        [(Workload::Decode { rows: 3, context: 40 }, 3, 3), (Workload::Prompt { tokens: 24 }, 24, 1)]
    {
        let kernels = runner.kernel_times(workload, 2).unwrap();
        let products = kernels.iter().filter(|kernel| kernel.variant.kernel.starts_with("matmul"));
        let flops: u64 = products.filter_map(|kernel| kernel.work).map(|work| work.flops).sum();
        assert_eq!(flops, 2 * (rows * layers + samples * head), "{workload:?}");
        assert!(kernels.iter().all(|kernel| kernel.times.len() == 2 && kernel.times[0] <= kernel.times[1]));
        let profile = runner.profile(workload, 2).unwrap();
        let count = |label| {
            kernels.iter().filter(|kernel| kernel.label == label).map(|kernel| kernel.dispatches).sum::<usize>()
        };
        for cost in &profile.kernels {
            assert_eq!(cost.dispatches, count(cost.label), "{}", cost.label);
        }
        let (_, dispatches) = runner.encode_time(workload, 1).unwrap();
        assert_eq!(profile.kernels.iter().map(|cost| cost.dispatches).sum::<usize>(), dispatches);
        assert!(profile.method == Method::LeftOut || profile.unexplained_seconds().abs() < profile.whole.as_secs_f64());
    }
}

#[test]
fn a_step_is_measured_where_its_context_ends() {
    let mut runner = runner(None);
    let attended = |runner: &mut WgpuRunner, context| {
        let kernels = runner.kernel_times(Workload::Decode { rows: 1, context }, 1).unwrap();
        let attention = kernels.iter().find(|kernel| kernel.variant.kernel == "attention").unwrap();
        (attention.grid[2], attention.work.unwrap())
    };
    let (chunks, short) = attended(&mut runner, 99);
    assert_eq!(chunks, 1);
    let (chunks, long) = attended(&mut runner, 299);
    assert_eq!(chunks, 2);
    assert_eq!((long.flops, long.bytes), (3 * short.flops, 3 * short.bytes));
    // What does not fit is left out, and said so.
    assert_eq!(runner.fit(Workload::Prompt { tokens: 1000 }), Workload::Prompt { tokens: 64 });
    let (context, blocks) = (runner.capacity().max_model_len as usize, runner.capacity().block_count as usize);
    let fitted = runner.fit(Workload::Decode { rows: 9, context });
    let Workload::Decode { rows: 4, context: fits } = fitted else { panic!("{fitted:?}") };
    // No two share a block, and none stays far below what it could have.
    let most = context.min(blocks / 4 * 16);
    assert!(fits + 48 <= most && fits + 48 + 16 >= most, "{fits} of {context}, {blocks} blocks");
    assert_eq!(runner.profile(Workload::Decode { rows: 9, context }, 1).unwrap().workload, fitted);
    // Device and host agree on the position: the step samples the token after it.
    runner.step_times(Workload::Decode { rows: 2, context: 77 }, 3).unwrap();
    assert_eq!(runner.slot_positions(2).unwrap(), [80, 80]);
}

#[test]
fn steps_are_measured_on_a_device_that_does_nothing() {
    let profile = list_adapters().unwrap().remove(0).profile;
    // Matrix units that give nothing but zeros, as here, are found out and left alone.
    let mut runner = runner(Some(Gpu::noop(Profile { matrix: Some(MatrixTile::Sixteen), ..profile })));
    assert_eq!(runner.gpu().profile.matrix, None);
    let (time, dispatches) = runner.encode_time(Workload::Decode { rows: 1, context: 8 }, 3).unwrap();
    assert!(time.as_nanos() > 0 && dispatches > 0);
    runner.gpu().check().unwrap();
}
