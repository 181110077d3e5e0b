//! The `aquifer` command.
fn main() {}
