//! The state of the screen, the effect of keys, and requests to weir in their own thread: keys work
//! even if weir does not answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use weir_api::{Client, ClientError};
use weir_config::PortName;
use weir_switch::explain::Explanation;
use weir_switch::stats::SwitchStats;

use super::columns::{Column, PortRates, Rates};
use crate::args::TopArgs;

/// weir's answers at one moment.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub(super) stats: SwitchStats,
    /// The explanation of the shown port, if a port is shown and still exists.
    pub(super) explained: Option<Explanation>,
}

/// Asks once. Each call makes a new connection, because weir would close an idle one.
pub(super) fn look(control: &Path, explain: Option<&PortName>) -> Result<Look, ClientError> {
    let mut client = Client::connect(control)?;
    let stats = client.stats()?;
    let explained = match explain.map(|name| client.explain(name)) {
        None | Some(Err(ClientError::Refused { .. } | ClientError::Later { .. })) => None,
        Some(explained) => Some(explained?),
    };
    Ok(Look { stats, explained })
}

/// The asking thread. It ends when the value is dropped.
pub(super) struct Asker {
    asks: Sender<Option<PortName>>,
    answers: Receiver<Result<Look, ClientError>>,
}

impl Asker {
    pub(super) fn start(control: &Path) -> io::Result<Self> {
        let control = PathBuf::from(control);
        let (asks, to_ask) = mpsc::channel::<Option<PortName>>();
        let (answered, answers) = mpsc::channel();
        thread::Builder::new().name("weir-top-asks".into()).spawn(move || {
            for explain in to_ask {
                if answered.send(look(&control, explain.as_ref())).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { asks, answers })
    }

    pub(super) fn ask(&self, explain: Option<PortName>) {
        // The thread runs as long as the value exists.
        let _ = self.asks.send(explain);
    }

    /// The answer, if one has arrived.
    pub(super) fn answer(&self) -> Option<Result<Look, ClientError>> {
        self.answers.try_recv().ok()
    }
}

/// The action after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Draw,
    /// Ask weir immediately.
    Ask,
    End,
}

/// The page on the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Page {
    List,
    Port(PortName),
    Help,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) interval: Duration,
    /// weir's last answer.
    pub(super) look: Option<Look>,
    pub(super) rates: Rates,
    /// The reason why weir does not answer now.
    pub(super) lost: Option<String>,
    pub(super) page: Page,
    pub(super) sort: Column,
    pub(super) reverse: bool,
    /// Only ports whose names contain this text are shown.
    pub(super) filter: String,
    /// True while keys edit the filter.
    pub(super) editing: bool,
    /// The selected port by name, so that it stays selected when other ports are added or removed.
    pub(super) selected: Option<PortName>,
    /// The first visible line of the list; `scrolled` is the first line of another page.
    pub(super) first: usize,
    pub(super) scrolled: usize,
    /// The visible lines of the list or page, set by the drawing.
    pub(super) page_lines: usize,
    /// The visible columns.
    pub(super) columns: Vec<Column>,
}

impl State {
    pub(super) fn new(args: &TopArgs) -> Self {
        Self {
            interval: Duration::from_secs(args.interval.into()),
            look: None,
            rates: Rates::default(),
            lost: None,
            page: Page::List,
            sort: args.sort,
            reverse: false,
            filter: args.filter.clone().unwrap_or_default(),
            editing: false,
            selected: None,
            first: 0,
            scrolled: 0,
            page_lines: 1,
            columns: Column::ALL.to_vec(),
        }
    }

    /// Takes an answer. After an error, the last known state stays.
    pub(super) fn looked(&mut self, answer: Result<Look, ClientError>) {
        match answer {
            Ok(look) => {
                let before = self.look.as_ref().map(|before| &before.stats);
                self.rates = Rates::between(before, &look.stats);
                (self.look, self.lost) = (Some(look), None);
            }
            Err(error) => self.lost = Some(error.to_string()),
        }
    }

    /// The port whose policies are to be explained.
    pub(super) fn explained(&self) -> Option<PortName> {
        match &self.page {
            Page::Port(name) => Some(name.clone()),
            Page::List | Page::Help => None,
        }
    }

    /// The ports of the list, in its order.
    pub(super) fn listed(&self) -> Vec<&PortRates> {
        listed(&self.rates, &self.filter, self.sort, self.reverse)
    }

    /// The place of the selected port in the list; the first place if the port was removed.
    pub(super) fn place(&self, listed: &[&PortRates]) -> usize {
        let name = self.selected.as_ref();
        listed.iter().position(|port| Some(&port.name) == name).unwrap_or(0)
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Next {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Next::End;
        }
        if self.editing {
            self.edit(key.code);
            return Next::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Next::End,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.open(Page::Help),
            KeyCode::Esc | KeyCode::Backspace if self.page != Page::List => self.open(Page::List),
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char(' ') => return Next::Ask,
            code if self.page == Page::List => return self.list_key(code),
            code => {
                self.scrolled =
                    moved(code, self.scrolled, self.page_lines).unwrap_or(self.scrolled);
            }
        }
        Next::Draw
    }

    fn list_key(&mut self, code: KeyCode) -> Next {
        match code {
            KeyCode::Left | KeyCode::Char('<') => self.sort_beside(-1),
            KeyCode::Right | KeyCode::Char('>') => self.sort_beside(1),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('/') => self.editing = true,
            KeyCode::Enter => {
                let listed = self.listed();
                if let Some(port) = listed.get(self.place(&listed)) {
                    let name = port.name.clone();
                    self.selected = Some(name.clone());
                    self.open(Page::Port(name));
                    return Next::Ask;
                }
            }
            code => {
                let listed = self.listed();
                if let Some(to) = moved(code, self.place(&listed), self.page_lines) {
                    let to = to.min(listed.len().saturating_sub(1));
                    self.selected = listed.get(to).map(|port| port.name.clone());
                }
            }
        }
        Next::Draw
    }

    fn edit(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.editing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.editing = false;
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            // Names have only these characters.
            KeyCode::Char(c) if c.is_ascii_graphic() => self.filter.push(c),
            _ => {}
        }
    }

    fn open(&mut self, page: Page) {
        (self.page, self.scrolled) = (page, 0);
    }

    /// Sorts by the neighbouring visible column.
    fn sort_beside(&mut self, by: isize) {
        let at = self.columns.iter().position(|column| *column == self.sort);
        let last = self.columns.len().saturating_sub(1);
        let to = at.map_or(0, |at| at.saturating_add_signed(by).min(last));
        self.sort = self.columns.get(to).copied().unwrap_or(self.sort);
        self.reverse = false;
    }
}

/// The ports whose names contain `filter`, sorted.
pub(super) fn listed<'r>(
    rates: &'r Rates,
    filter: &str,
    sort: Column,
    reverse: bool,
) -> Vec<&'r PortRates> {
    let ports = rates.ports.iter().filter(|port| port.name.as_str().contains(filter));
    let mut ports: Vec<_> = ports.collect();
    ports.sort_by(|a, b| sort.order(a, b, reverse));
    ports
}

/// The line to which a key moves from line `at`, if it moves at all.
fn moved(code: KeyCode, at: usize, page: usize) -> Option<usize> {
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => at.saturating_add(1),
        KeyCode::PageUp => at.saturating_sub(page),
        KeyCode::PageDown => at.saturating_add(page),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => usize::MAX,
        _ => return None,
    })
}
