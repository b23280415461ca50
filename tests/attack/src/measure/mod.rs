//! What weir and its other guests notice of an attack.

pub mod attacker;
pub mod http;
pub mod newcomer;
pub mod process;
pub mod report;
pub mod stand_in;
pub mod switch;
pub mod trial;
pub mod victims;
