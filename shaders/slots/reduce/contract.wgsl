// Reductions over a workgroup of WG_X lanes. Every lane calls them, at the top level of `main` or of a function that
// every lane calls, and every lane gets the result. The order of summation is fixed by WG_X alone. Both contain barriers
// or behave as if they did: writes to workgroup memory before the call are visible after it.

fn reduce_add(value: f32, lane: u32) -> f32 { return value; }
fn reduce_max(value: f32, lane: u32) -> f32 { return value; }
