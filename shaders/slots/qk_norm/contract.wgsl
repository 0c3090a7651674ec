// Norm of a query or key head before rotation. Every lane of the workgroup calls head_scale; `squares` is the lane's share
// of the head's sum of squares. head_weight is the factor of one element; `key` says whose norm it is.

fn head_scale(squares: f32, lane: u32) -> f32 { return 1.0; }
fn head_weight(key: bool, element: u32) -> f32 { return 1.0; }
