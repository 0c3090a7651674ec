//! A prompt that is answered by a Rust value: schemars makes the JSON Schema of a type, the model writes JSON that fits it, serde
//! reads the value. It needs the feature `structured`. Run it with
//! `cargo run --release --example structured -- path/to/model "pancakes"`.

use octavo::{ChatMessage, EngineOptions, Llm, SamplingParams};
use schemars::JsonSchema;
use serde::Deserialize;

/// What the model is to write. Bounds keep a small model from going on and on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // fields that are only printed
struct Recipe {
    #[schemars(length(min = 1, max = 40))]
    name: String,
    course: Course,
    vegetarian: bool,
    #[schemars(range(min = 1, max = 240))]
    minutes: u32,
    #[schemars(length(min = 2, max = 6))]
    ingredients: Vec<Ingredient>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Course {
    Starter,
    Main,
    Dessert,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // fields that are only printed
struct Ingredient {
    #[schemars(length(min = 1, max = 24))]
    what: String,
    #[schemars(range(min = 1, max = 2000))]
    grams: u32,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().expect("usage: structured MODEL [DISH]");
    let dish = args.next().unwrap_or_else(|| "pancakes".into());
    let llm = Llm::open(model, EngineOptions::default())?;

    let schema = schemars::schema_for!(Recipe);
    let messages = [ChatMessage::new("user", format!("Write a short recipe of {dish} as JSON."))];
    let params = SamplingParams::sampled(0.7).seed(1).max_tokens(400).json_schema(schema);
    let output = llm.chat(&messages, params)?;

    println!("{}\n", output.text);
    let recipe: Recipe = serde_json::from_str(&output.text)?;
    println!("{recipe:#?}");
    Ok(())
}
