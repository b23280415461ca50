//! Drivers on the simulated Xen, and a switch between them.

mod control;
mod copies;
mod hostile;
mod side_by_side;
mod traffic;

use weir_engine::guest::{CallPolicy, State};
use weir_limits::LATENCY_BUDGET_NS_MAX;
use weir_policy::moderation::Kind;
use weir_xen::DomainId;
use weir_xen::vif::XenbusState;

use crate::testing::bench::{
    Bench, all_is_answered, eventually, frame, receive, vif, while_frames_wait,
};
use crate::testing::{Connect, Netfront, Received};

/// The longest budget: only the test's own actions end a hold soon.
const LONG_NS: u64 = LATENCY_BUDGET_NS_MAX;
