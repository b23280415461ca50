//! Effects of an attack on weir and its other guests.

pub mod attacker;
pub mod report;
pub mod stand_in;
pub mod switch;
pub mod trial;
pub mod victims;
