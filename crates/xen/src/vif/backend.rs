//! The back end's half of the hand-shake (`xen/include/public/io/xenbus.h`), as pure logic.

/// `enum xenbus_state`, as both ends write it to their `state` nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum XenbusState {
    /// It begins.
    Initialising = 1,
    /// The back end has said what it can do, and waits for the front end's keys.
    InitWait = 2,
    /// The front end has written its keys.
    Initialised = 3,
    /// In use.
    Connected = 4,
    /// It ends; whoever sees it lets go.
    Closing = 5,
    /// It has let go.
    Closed = 6,
    /// The front end changes its settings.
    Reconfiguring = 7,
    /// The back end has taken note.
    Reconfigured = 8,
}

impl XenbusState {
    const ALL: [Self; 8] = [
        Self::Initialising,
        Self::InitWait,
        Self::Initialised,
        Self::Connected,
        Self::Closing,
        Self::Closed,
        Self::Reconfiguring,
        Self::Reconfigured,
    ];

    /// The state that a `state` node's value names, if it does.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let [digit] = value else { return None };
        Self::ALL.into_iter().find(|state| *state as u8 + b'0' == *digit)
    }

    /// The value of a `state` node.
    pub fn to_value(self) -> [u8; 1] {
        [self as u8 + b'0']
    }
}

/// What xenstore shows at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The back end's directory is there: the toolstack removes it with the vif.
    pub present: bool,
    /// The back end's own `state` node, which the toolstack writes to, too.
    pub own: Option<XenbusState>,
    /// The toolstack wants the vif to stay (`online`). Where it does not, the front end is asked to close by
    /// the `Closing` that the toolstack writes to the back end's `state`.
    pub online: bool,
    /// The front end's `state`; `None` if there is none, such as after its domain died, or nonsense.
    pub front: Option<XenbusState>,
}

/// What is to be done, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write what weir can do, then the state `InitWait`.
    Advertise,
    /// Read the front end's keys, map its rings, bind its channels; then tell [`Backend::connected`] or
    /// [`Backend::failed`].
    Connect,
    /// Let go of all that `Connect` has taken.
    Disconnect,
    /// Write this state.
    Publish(XenbusState),
    /// The vif is no more.
    Forget,
}

/// One vif's back end. It acts on the present state alone: a xenstore watch says that something has changed, and
/// one event may stand for several changes.
///
/// The transitions are those of Linux's netback, which front ends expect:
///
/// ```text
/// Initialising --> InitWait --> Connected
///                     ^  \          |
///                     |   v         v
///                   Closed <---- Closing
/// ```
#[derive(Debug)]
pub struct Backend {
    /// What weir published last.
    state: XenbusState,
    /// Rings are mapped.
    in_use: bool,
}

impl Default for Backend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend {
    /// A vif that weir has just found. What a process before it published is of no interest: a front end
    /// that is connected still is served again.
    pub fn new() -> Self {
        Self { state: XenbusState::Initialising, in_use: false }
    }

    /// What weir published last.
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// The actions that lead from where this is to what `seen` asks for.
    pub fn step(&mut self, seen: Seen) -> Vec<Action> {
        let mut actions = Vec::new();
        if !seen.present {
            self.disconnect(&mut actions);
            self.state = XenbusState::Closed;
            actions.push(Action::Forget);
            return actions;
        }
        if seen.own == Some(XenbusState::Initialising) && self.state != XenbusState::Initialising {
            // The toolstack has made the vif anew, and nobody was told that the old one had gone.
            self.disconnect(&mut actions);
            self.state = XenbusState::Initialising;
        }
        if !seen.online && seen.own == Some(XenbusState::Connected) {
            // The toolstack's `Closing` came while weir connected, which has written over it: the front end
            // was not asked to close, and never will be.
            self.disconnect(&mut actions);
        }
        if !seen.online && !self.in_use {
            // Detached, and nothing is left to let go of. The toolstack waits for `Closed`, and has
            // written over what weir published, which may have been the same.
            if self.state != XenbusState::Closed || seen.own != Some(XenbusState::Closed) {
                self.state = XenbusState::Closed;
                actions.push(Action::Publish(XenbusState::Closed));
            }
            return actions;
        }
        match seen.front {
            Some(XenbusState::Initialising) => self.wait(&mut actions),
            Some(XenbusState::Connected) => {
                // After a failure it takes a new start of the front end.
                if self.state == XenbusState::Initialising {
                    self.wait(&mut actions);
                }
                if self.state == XenbusState::InitWait {
                    actions.push(Action::Connect);
                }
            }
            Some(XenbusState::Closing) => {
                self.disconnect(&mut actions);
                if self.state != XenbusState::Closed {
                    self.publish(XenbusState::Closing, &mut actions);
                }
            }
            Some(XenbusState::Closed) | None => {
                self.disconnect(&mut actions);
                self.publish(XenbusState::Closed, &mut actions);
            }
            // Its keys may not be complete, or it has no business being there.
            Some(
                XenbusState::InitWait
                | XenbusState::Initialised
                | XenbusState::Reconfiguring
                | XenbusState::Reconfigured,
            ) => {
                if self.state == XenbusState::Initialising {
                    self.wait(&mut actions);
                }
            }
        }
        actions
    }

    /// `Connect` is done: what is to be done next.
    pub fn connected(&mut self) -> Action {
        self.in_use = true;
        self.state = XenbusState::Connected;
        Action::Publish(XenbusState::Connected)
    }

    /// `Connect` failed, or the guest broke a rule later: what is to be done next. The vif stays closed
    /// until its front end starts anew.
    pub fn failed(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.disconnect(&mut actions);
        self.publish(XenbusState::Closing, &mut actions);
        actions
    }

    /// To `InitWait`, by way of `Closing` and `Closed` if the front end starts anew without a farewell.
    fn wait(&mut self, actions: &mut Vec<Action>) {
        if self.state == XenbusState::InitWait {
            return;
        }
        if self.in_use {
            self.disconnect(actions);
            self.publish(XenbusState::Closing, actions);
        }
        if self.state == XenbusState::Closing {
            self.publish(XenbusState::Closed, actions);
        }
        self.state = XenbusState::InitWait;
        actions.push(Action::Advertise);
    }

    fn disconnect(&mut self, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.in_use) {
            actions.push(Action::Disconnect);
        }
    }

    fn publish(&mut self, state: XenbusState, actions: &mut Vec<Action>) {
        if self.state != state {
            self.state = state;
            actions.push(Action::Publish(state));
        }
    }
}
