//! The table of families: what each is called in a Hugging Face folder and in a GGUF file, and the formats of both.

use octavo::base::DType;
use octavo::model::arch;
use std::fmt::Write;

/// A Markdown table, one row for each family that octavo runs.
pub fn table() -> String {
    let names = |wanted: fn(&DType) -> bool| {
        let names: Vec<String> =
            DType::ALL.iter().filter(|dtype| wanted(dtype)).map(|dtype| dtype.name().to_uppercase()).collect();
        names.join(", ")
    };
    // safetensors has no formats of blocks.
    let (plain, all) = (names(|dtype| dtype.block_elements() == 1), names(|_| true));
    let mut text = String::new();
    let mut line = |cells: [&str; 3]| {
        writeln!(text, "| {} | {} | {} |", cells[0], cells[1], cells[2]).expect("writing to a text cannot fail");
    };
    line(["family", "class in a Hugging Face folder", "architecture in a GGUF file"]);
    line(["---", "---", "---"]);
    for family in arch::ALL {
        let classes: Vec<String> = family.classes().iter().map(|class| format!("`{class}`")).collect();
        line([family.family(), &classes.join(", "), &format!("`{}`", family.gguf_name())]);
    }
    line(["all of them", &format!("safetensors of {plain}"), &format!("matrices of {all}, mixed as files are")]);
    text
}
