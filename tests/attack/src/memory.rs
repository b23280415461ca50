//! To come.
use crate::attack::Attack;
/// The class.
pub const ALL: &[Attack] = &[];
