// Where a kernel leaves rows of activations for a product, as that reads them; bound as `result`. Blocks of 32 columns are counted
// through all rows, and `at` counts vectors of four; a kernel that has no whole blocks may write vectors unless BLOCKS is set.

alias Columns = array<vec4<f32>, 8>;
const BLOCKS: bool = false;
fn write_block(block: u32, columns: ptr<function, Columns>) {}
fn write_vector(at: u32, vector: vec4<f32>) {}
