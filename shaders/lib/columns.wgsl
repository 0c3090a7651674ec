//! Numbers of one block of 32 columns of a row.

alias Columns = array<vec4<f32>, 8>;
