// The function between an MLP's projections.

fn activate(x: f32) -> f32 { return x; }
