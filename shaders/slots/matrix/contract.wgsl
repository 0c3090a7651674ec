// Tiles of the adapter's matrix unit, MATRIX rows and columns: `Left` holds activations [token, column], `Right` weights
// [column, row], `Sum` f32 sums [token, row].

const MATRIX: u32 = 1u;
alias Left = f32;
alias Right = f32;
alias Sum = f32;
