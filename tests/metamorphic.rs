//! A request's tokens depend on model, prompt and parameters alone. Random requests run by themselves on the plainest
//! configuration, then again under every other one, and each pair must agree token for token.
//!
//! The seed is printed; `OCTAVO_TEST_SEED` sets it, `OCTAVO_TEST_REQUESTS` the number of requests.

#[path = "common/drive.rs"]
mod drive;
#[path = "common/golden.rs"]
mod golden;

use drive::{Ask, Dice, Seen};
use octavo::base::{DType, TokenId};
use octavo::config::{Activations, EngineConfig, EngineOptions, KvDtype};
use octavo::model::files::ModelFiles;
use octavo::runner::ModelRunner;
use octavo::runner::wgpu::WgpuRunner;
use octavo::sampling::SamplingParams;
use octavo::sched::{SchedulerConfig, SchedulerStats};

const CONTEXT: usize = 320;
const CROWD: usize = 12;

fn options() -> EngineOptions {
    EngineOptions {
        max_num_seqs: CROWD,
        max_num_batched_tokens: 192,
        max_model_len: Some(CONTEXT),
        num_kv_blocks: Some(CROWD * CONTEXT / 16),
        steps_per_submit: 16,
        ..EngineOptions::default()
    }
}

fn load(files: &ModelFiles, options: EngineOptions) -> WgpuRunner {
    let config = EngineConfig::new(options, &files.spec).unwrap();
    WgpuRunner::load(files, &config, &mut |_| {}).unwrap()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Random prompts, a third of them beginning alike so that the prefix cache has something to find, a few longer than one
/// attention chunk; half greedy, half sampled.
fn random_asks(seed: u64, count: usize, vocab: u64) -> Vec<Ask> {
    let mut dice = Dice(seed);
    let shared: Vec<TokenId> = (0..200).map(|_| dice.below(vocab) as TokenId).collect();
    (0..count)
        .map(|index| {
            let len = match index % 7 {
                0 => 230 + dice.below(50),
                _ => 1 + dice.below(100),
            } as usize;
            let mut prompt: Vec<TokenId> = (0..len).map(|_| dice.below(vocab) as TokenId).collect();
            if index % 3 == 0 {
                let common = len.min(shared.len()) * 3 / 4;
                prompt[..common].copy_from_slice(&shared[..common]);
            }
            let mut params = SamplingParams::default();
            if index % 2 == 1 {
                params.temperature = 0.5 + dice.below(100) as f32 / 100.0;
                params.top_k = [0, 5, 40][dice.below(3) as usize];
                params.top_p = [1.0, 0.9, 0.5][dice.below(3) as usize];
                params.min_p = [0.0, 0.05][dice.below(2) as usize];
            }
            if index % 5 == 0 {
                params.stop_token_ids = (0..8).map(|_| dice.below(vocab) as TokenId).collect();
            }
            Ask {
                prompt,
                max_tokens: 1 + dice.below(36) as u32,
                params,
                seed: dice.word(),
                arrival: dice.below(60) as usize,
            }
        })
        .collect()
}

/// The same requests, each by itself.
fn alone(runner: &mut WgpuRunner, asks: &[Ask]) -> Vec<Vec<TokenId>> {
    let config = drive::plain(&runner.capacity());
    let each = asks.iter().map(|ask| {
        let ask = Ask { arrival: 0, ..ask.clone() };
        drive::run(runner, config.clone(), std::slice::from_ref(&ask)).0.remove(0)
    });
    each.collect()
}

type Change = fn(&mut SchedulerConfig);
/// Figures, what was seen of the plans, and the submissions of the first schedule, which cuts and joins nothing.
type Check = fn(&SchedulerStats, &Seen, u64) -> bool;

/// What differs from the plain configuration, and a sign that it really happened.
const SCHEDULES: &[(&str, Change, Check)] = &[
    ("a crowd of 12", |_| {}, |_, _, _| true),
    ("chunks of 1", |config| config.long_prefill_token_threshold = 1, |_, seen, _| seen.largest_chunk == 1),
    ("chunks of 7", |config| config.long_prefill_token_threshold = 7, |_, seen, _| seen.largest_chunk == 7),
    ("chunks of 16", |config| config.long_prefill_token_threshold = 16, |_, seen, _| seen.largest_chunk == 16),
    ("chunks of 33", |config| config.long_prefill_token_threshold = 33, |_, seen, _| seen.largest_chunk == 33),
    (
        "a budget of 13 tokens a step",
        |config| config.max_num_batched_tokens = 13,
        |_, seen, _| seen.largest_chunk <= 13,
    ),
    ("the prefix cache", |config| config.prefix_cache = true, |stats, _, _| stats.prefix_hits > 0),
    ("4 steps a submission", |config| config.max_steps = 4, |_, seen, plain| seen.submissions < plain),
    (
        "16 steps a submission and run-ahead",
        |config| {
            config.max_steps = 16;
            config.max_in_flight = 2;
        },
        |_, seen, plain| seen.submissions < plain,
    ),
    (
        "everything at once",
        |config| {
            config.max_steps = 4;
            config.max_in_flight = 2;
            config.prefix_cache = true;
            config.long_prefill_token_threshold = 19;
        },
        |stats, _, _| stats.prefix_hits > 0,
    ),
];

fn compare(name: &str, asks: &[Ask], expected: &[Vec<TokenId>], tokens: &[Vec<TokenId>]) -> usize {
    for ((ask, expected), tokens) in asks.iter().zip(expected).zip(tokens) {
        assert_eq!(tokens, expected, "{name} changed the tokens of {ask:?}");
    }
    asks.len()
}

#[test]
fn no_configuration_changes_a_token() {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let seed = number("OCTAVO_TEST_SEED", std::process::id().into());
    let count = number("OCTAVO_TEST_REQUESTS", 28) as usize;
    println!("OCTAVO_TEST_SEED={seed} OCTAVO_TEST_REQUESTS={count}");
    let asks = random_asks(seed, count, files.spec.vocab_size as u64);
    let mut pairs = 0;

    let mut runner = load(&files, options());
    let expected = alone(&mut runner, &asks);
    assert!(expected.iter().any(|tokens| tokens.len() > 20), "outputs long enough to tell a difference");
    let mut plain = None;
    for (name, change, happened) in SCHEDULES {
        let mut config = drive::plain(&runner.capacity());
        change(&mut config);
        let (tokens, stats, seen) = drive::run(&mut runner, config, &asks);
        pairs += compare(name, &asks, &expected, &tokens);
        let plain = *plain.get_or_insert(seen.submissions);
        assert!(happened(&stats, &seen, plain), "{name} was meant to happen: {seen:?}, {stats:?}");
    }

    let runners = [
        ("eager recording", EngineOptions { eager: true, ..options() }),
        ("sharded weights", EngineOptions { binding_limit: Some(20 << 10), ..options() }),
        ("checked shaders", EngineOptions { checked_shaders: true, ..options() }),
    ];
    for (name, options) in runners {
        let mut runner = load(&files, options);
        let heads = runner.census().iter().find(|(label, _)| *label == "head").map(|(_, count)| *count);
        assert_eq!(heads > Some(1), name == "sharded weights");
        let mut config = drive::plain(&runner.capacity());
        config.max_steps = 4;
        config.max_in_flight = 2;
        let (tokens, ..) = drive::run(&mut runner, config, &asks);
        pairs += compare(name, &asks, &expected, &tokens);
    }
    println!("{pairs} pairs agreed");
}

#[test]
fn preemption_changes_no_token() {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let mut runner = load(&files, EngineOptions { num_kv_blocks: Some(22), ..options() });
    let seed = number("OCTAVO_TEST_SEED", std::process::id().into());
    println!("OCTAVO_TEST_SEED={seed}");
    // Short prompts and long outputs: many are admitted, and then outgrow the pool together.
    let mut dice = Dice(seed);
    let mut asks = random_asks(seed, 24, files.spec.vocab_size as u64);
    for ask in &mut asks {
        ask.prompt.truncate(1 + dice.below(40) as usize);
        ask.max_tokens = 40 + dice.below(60) as u32;
        ask.params.stop_token_ids.clear();
        ask.arrival = 0;
    }
    let expected = alone(&mut runner, &asks);
    for prefix_cache in [false, true] {
        let mut config = drive::plain(&runner.capacity());
        config.max_steps = 4;
        config.max_in_flight = 2;
        config.prefix_cache = prefix_cache;
        let (tokens, stats, _) = drive::run(&mut runner, config, &asks);
        compare("preemption", &asks, &expected, &tokens);
        assert!(stats.preemptions > 10, "several times a request: {stats:?}");
    }
}

/// Contexts of several attention chunks, whose number is no power of two, up to the very end of the context.
#[test]
fn long_contexts_are_as_steady() {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    for context in [256, 512, 600, 1300] {
        let mut runner = load(
            &files,
            EngineOptions {
                max_num_seqs: 3,
                max_model_len: Some(context.min(files.spec.max_position_embeddings)),
                num_kv_blocks: Some(3 * context.div_ceil(16)),
                ..options()
            },
        );
        let context = runner.capacity().max_model_len as usize;
        let mut asks = random_asks(context as u64, 4, files.spec.vocab_size as u64);
        let mut dice = Dice(7);
        for (index, ask) in asks.iter_mut().enumerate() {
            // The first reaches the end of the context while the others still run.
            let left = 12 + 9 * index;
            ask.prompt = (0..context - left).map(|_| dice.below(500) as TokenId).collect();
            ask.max_tokens = if index == 0 { left as u32 } else { 30.min(left as u32) };
            ask.params.stop_token_ids.clear();
            ask.arrival = 0;
        }
        let expected = alone(&mut runner, &asks);
        let mut config = drive::plain(&runner.capacity());
        config.max_steps = 8;
        config.max_in_flight = 2;
        config.long_prefill_token_threshold = 50;
        let (tokens, ..) = drive::run(&mut runner, config, &asks);
        compare(&format!("a context of {context}"), &asks, &expected, &tokens);
    }
}

/// Single precision, and eight bits, where an entry's rounding could follow what is stored beside it but does not: in a crowd, in
/// chunks, from the prefix cache, after preemption, and on checked shaders.
#[test]
fn kv_of_other_widths_is_as_steady() {
    let files = ModelFiles::open(&golden::path("tiny-qwen3")).unwrap();
    let asks = random_asks(11, 10, 515);
    // Long outputs that outgrow the memory together.
    let mut rush = asks[..7].to_vec();
    for ask in &mut rush {
        ask.prompt.truncate(30);
        ask.params.stop_token_ids.clear();
        (ask.max_tokens, ask.arrival) = (50, 0);
    }
    for kv_dtype in [KvDtype::F32, KvDtype::Q8_0] {
        let mut runner = load(&files, EngineOptions { kv_dtype, ..options() });
        let expected = alone(&mut runner, &asks);
        let mut config = drive::plain(&runner.capacity());
        config.long_prefill_token_threshold = 7;
        config.max_steps = 4;
        config.max_in_flight = 2;
        let (tokens, ..) = drive::run(&mut runner, config.clone(), &asks);
        compare(&format!("{kv_dtype}, a crowd in chunks of 7"), &asks, &expected, &tokens);
        config.prefix_cache = true;
        config.long_prefill_token_threshold = 19;
        let (tokens, stats, _) = drive::run(&mut runner, config.clone(), &asks);
        compare(&format!("{kv_dtype}, from the prefix cache"), &asks, &expected, &tokens);
        assert!(stats.prefix_hits > 0);
        let tight = EngineOptions { kv_dtype, num_kv_blocks: Some(22), checked_shaders: true, ..options() };
        let long = alone(&mut runner, &rush);
        let (tokens, stats, _) = drive::run(&mut load(&files, tight), config, &rush);
        compare(&format!("{kv_dtype}, in little memory"), &rush, &long, &tokens);
        assert!(stats.preemptions > 0, "{stats:?}");
    }
}

/// Products of whole numbers, of a dense model and of experts.
#[test]
fn quantised_weights_are_as_steady() {
    for (model, dtype) in
        [("tiny-llama", DType::Q4_1), ("tiny-llama3-rope", DType::Q4_1), ("tiny-qwen3-moe", DType::Q8_0)]
    {
        let files = ModelFiles::open(&golden::path(model)).unwrap();
        let context = files.spec.max_position_embeddings.min(CONTEXT);
        let load = |activations, binding_limit| {
            let quantize = Some(dtype);
            let options = EngineOptions { max_model_len: Some(context), quantize, activations, ..options() };
            load(&files, EngineOptions { binding_limit, ..options })
        };
        let asks: Vec<Ask> = random_asks(12, 10, files.spec.vocab_size as u64)
            .into_iter()
            .filter(|ask| ask.prompt.len() + 36 < context)
            .collect();
        let mut runner = load(Activations::Int12, None);
        let expected = alone(&mut runner, &asks);
        let mut config = drive::plain(&runner.capacity());
        let (tokens, ..) = drive::run(&mut runner, config.clone(), &asks);
        compare(&format!("{model}, a crowd"), &asks, &expected, &tokens);
        config.long_prefill_token_threshold = 7;
        config.max_steps = 4;
        config.max_in_flight = 2;
        config.prefix_cache = true;
        let (tokens, ..) = drive::run(&mut runner, config.clone(), &asks);
        compare(&format!("{model}, everything at once"), &asks, &expected, &tokens);
        let (tokens, ..) = drive::run(&mut load(Activations::Int12, Some(36 << 10)), config, &asks);
        compare(&format!("{model}, sharded weights"), &asks, &expected, &tokens);
        // And they are products of whole numbers.
        let exact = alone(&mut load(Activations::F32, None), &asks);
        let same = exact.iter().zip(&expected).filter(|(exact, rounded)| exact == rounded).count();
        println!("{model}: {same} of {} requests have the tokens of activations in f32", asks.len());
    }
}

#[test]
fn short_submissions_give_the_same_tokens() {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let asks = random_asks(3, 8, files.spec.vocab_size as u64);
    let [(usual, many), (short, more)] = [100, 1].map(|millis| {
        let budget = std::time::Duration::from_millis(millis);
        let mut runner = load(&files, EngineOptions { submit_budget: budget, ..options() });
        let config = drive::plain(&runner.capacity());
        // Twice, so that the second run knows how long steps take.
        drive::run(&mut runner, config.clone(), &asks);
        let before = runner.counters().submitted;
        let (tokens, ..) = drive::run(&mut runner, config, &asks);
        let after = runner.counters().submitted;
        (tokens, (after.submissions - before.submissions, after.dispatches - before.dispatches))
    });
    compare("submissions of 1 ms", &asks, &usual, &short);
    // The same steps, in more pieces.
    assert!(more.0 > many.0 && more.1 == many.1, "{more:?} {many:?}");
}

#[test]
fn a_warm_runner_creates_nothing() {
    let files = ModelFiles::open(&golden::path("tiny-llama")).unwrap();
    let mut runner = load(&files, options());
    let asks = random_asks(5, 8, files.spec.vocab_size as u64);
    let config = drive::plain(&runner.capacity());
    drive::run(&mut runner, config.clone(), &asks);
    let warm = runner.counters();
    drive::run(&mut runner, config, &asks);
    let again = runner.counters();
    assert!(again.submitted.submissions > warm.submitted.submissions);
    let created = |counters: &octavo::runner::wgpu::RunnerCounters| {
        (counters.buffers, counters.bind_groups, counters.pipelines, counters.bundles)
    };
    assert_eq!(created(&again), created(&warm));
}

/// Every family through crowds, chunks, prefixes, bundles, preemption, fresh recording and shards.
#[test]
fn every_family_is_as_steady() {
    let mut pairs = 0;
    for (seed, model) in (1..).zip([
        "tiny-llama3-rope",
        "tiny-qwen2",
        "tiny-mistral",
        "tiny-gpt2",
        "tiny-qwen3-moe",
        "tiny-gemma2",
        "tiny-gemma3",
        "tiny-phi3",
        "tiny-olmo2",
    ]) {
        let files = ModelFiles::open(&golden::path(model)).unwrap();
        let context = files.spec.max_position_embeddings.min(CONTEXT);
        // Little more than one sequence of full length: outputs outgrow the pool.
        let small = EngineOptions { max_model_len: Some(context), num_kv_blocks: Some(context / 16 + 2), ..options() };
        let mut asks = random_asks(seed, 7, files.spec.vocab_size as u64);
        let mut dice = Dice(seed);
        let shared: Vec<TokenId> = (0..16).map(|_| dice.below(500) as TokenId).collect();
        for (index, ask) in asks.iter_mut().enumerate() {
            // A long prompt meets six that fit together at first, three of which begin alike.
            let len = if index == 0 { context - 40 } else { 27 + index };
            ask.prompt = (0..len).map(|_| dice.below(500) as TokenId).collect();
            if index % 2 == 0 {
                ask.prompt[..16].copy_from_slice(&shared);
            }
            ask.max_tokens = 36;
            ask.params.stop_token_ids.clear();
            ask.arrival = if index == 0 { 12 } else { 0 };
        }
        let mut runner = load(&files, small.clone());
        let expected = alone(&mut runner, &asks);

        let mut config = drive::plain(&runner.capacity());
        config.long_prefill_token_threshold = 7;
        let (tokens, stats, _) = drive::run(&mut runner, config.clone(), &asks);
        pairs += compare(&format!("{model}, a crowd in chunks of 7"), &asks, &expected, &tokens);
        // Where memory slides, there is enough for everybody.
        assert!(stats.preemptions > 0 || runner.capacity().window.is_some(), "{model}: {stats:?}");
        config.max_steps = 4;
        config.max_in_flight = 2;
        config.prefix_cache = true;
        config.long_prefill_token_threshold = 19;
        let (tokens, ..) = drive::run(&mut runner, config.clone(), &asks);
        pairs += compare(&format!("{model}, everything at once"), &asks, &expected, &tokens);

        let mut runner = load(&files, EngineOptions { eager: true, binding_limit: Some(36 << 10), ..small });
        let (tokens, ..) = drive::run(&mut runner, config, &asks);
        pairs += compare(&format!("{model}, fresh recording of sharded weights"), &asks, &expected, &tokens);
    }
    println!("{pairs} pairs agreed");
}

/// Dispatches of a decode step: those around the layers, those of the layers, and what a family needs besides.
#[test]
fn the_dispatches_of_a_step_are_counted() {
    // Rows, embedding, final norm, head, two passes of the sampler.
    const AROUND: usize = 6;
    for (model, per_layer, besides) in [
        ("tiny-llama", 8, 0),
        ("tiny-mistral", 8, 0),
        // Heads in whole groups of rows come from their product.
        ("tiny-llama3-rope", 7, 0),
        ("tiny-qwen3", 8, 0),
        ("tiny-phi3", 8, 0),
        // The positions.
        ("tiny-gpt2", 8, 1),
        // Norms after a sublayer make the next one's norm too, all but the very first.
        ("tiny-gemma2", 8, 1),
        ("tiny-gemma3", 8, 1),
        // The norms of whole rows.
        ("tiny-olmo2", 9, 0),
        // In two of three layers: router, choice, combination.
        ("tiny-qwen3-moe", 8, 6),
    ] {
        let files = ModelFiles::open(&golden::path(model)).unwrap();
        let context = files.spec.max_position_embeddings.min(CONTEXT);
        let runner = load(&files, EngineOptions { max_model_len: Some(context), ..options() });
        let expected = AROUND + per_layer * files.spec.layers.len() + besides;
        assert_eq!(runner.info().dispatches_per_step as usize, expected, "{model}: {:?}", runner.census());
    }
    // Quantised weights: products leave their rows for the next ones, norms and all but for that before the first layer.
    for (model, dtype, per_layer, besides) in [
        ("tiny-llama", DType::Q4_1, 6, 1),
        ("tiny-llama3-rope", DType::Q4_1, 5, 1),
        ("tiny-qwen3", DType::Q8_0, 6, 1),
        ("tiny-phi3", DType::Q4_0, 6, 1),
        // A plane of high bits takes the binding that the weight of the next norm would need.
        ("tiny-llama", DType::Q5_0, 8, 0),
        // Norms after a sublayer, which need whole rows.
        ("tiny-gemma3", DType::Q4_1, 8, 1),
    ] {
        let files = ModelFiles::open(&golden::path(model)).unwrap();
        let context = files.spec.max_position_embeddings.min(CONTEXT);
        let options = EngineOptions { max_model_len: Some(context), quantize: Some(dtype), ..options() };
        let runner = load(&files, options);
        // Attention leaves blocks of 32 columns only where heads have whole ones.
        let per_layer = per_layer + usize::from(!files.spec.layers[0].attn.head_dim.is_multiple_of(32));
        let expected = AROUND + per_layer * files.spec.layers.len() + besides;
        assert_eq!(runner.info().dispatches_per_step as usize, expected, "{model}, {dtype}: {:?}", runner.census());
    }
}
