//! Events for their readers. Without a reader nothing is polled and nothing wakes up.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{self as http_body, Frame};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{MissedTickBehavior, interval, sleep};
use weir_limits::{EVENTS_KEEP_ALIVE_SECS, EVENTS_LOOK_NS, EVENTS_WAITING_MAX};
use weir_switch::events::{Event, Glance, Watcher};

use crate::api::{Api, Asker};
use crate::problem::Problem;
use crate::work::Work;

/// A comment of the event stream, which readers ignore.
const KEEP_ALIVE: &[u8] = b": \n\n";

/// The source of events.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    sender: broadcast::Sender<Bytes>,
    /// The switch as it was seen last, as long as it is watched.
    watcher: Arc<Mutex<Option<Watcher>>>,
    work: Work,
}

impl Hub {
    pub(crate) fn new(work: Work) -> Self {
        let (sender, _) = broadcast::channel(EVENTS_WAITING_MAX);
        Self { sender, watcher: Arc::default(), work }
    }

    fn watcher(&self) -> MutexGuard<'_, Option<Watcher>> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events from now on, as the body of an answer.
    pub(crate) async fn read(&self, api: &Api, asker: &Asker) -> Result<Body, Problem> {
        // The subscription comes before the first look, so that no event in between is missed.
        let receiver = self.sender.subscribe();
        if self.watcher().is_none() {
            let first = api.ask(asker, |handler| Watcher::new(handler.glance())).await?;
            let mut watcher = self.watcher();
            // If two readers come at once, the second uses the first one's look.
            if watcher.is_none() {
                *watcher = Some(first);
                tokio::spawn(self.clone().watch());
            }
        }
        // This line is sent at once: its reader then knows that no later event is missed.
        let begun = std::future::ready(Some((receiver, Bytes::from_static(KEEP_ALIVE))));
        Ok(Body::new(Stream(Box::pin(begun))))
    }

    /// Polls the switch until there is no reader any more.
    async fn watch(self) {
        let mut looks = interval(Duration::from_nanos(EVENTS_LOOK_NS));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            if self.sender.receiver_count() == 0 {
                self.watcher().take();
                return;
            }
            let hub = self.clone();
            // A failed look is logged by the job itself.
            let _ = self.work.ask(None, None, move |handler| hub.look(handler.glance())).await;
        }
    }

    fn look(&self, glance: Glance) {
        let events = self.watcher().as_mut().map(|watcher| watcher.look(glance));
        for event in events.into_iter().flatten() {
            // The send fails if the reader has disconnected.
            let _ = self.sender.send(written(&event));
        }
    }
}

/// An event in the stream's format (HTML, "Server-sent events").
fn written(event: &Event) -> Bytes {
    // JSON has no newlines of its own.
    let data = serde_json::to_string(event).expect("strings and numbers");
    format!("event: {}\ndata: {data}\n\n", event.name()).into()
}

/// The next bytes for a reader, and the source of the rest; `None` when weir ends.
type Next = Option<(broadcast::Receiver<Bytes>, Bytes)>;

/// A body without an end: it waits for the next event once the last one was taken.
struct Stream(Pin<Box<dyn Future<Output = Next> + Send>>);

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.as_mut().poll(context).map(|got| {
            let (events, bytes) = got?;
            self.0 = Box::pin(next(events));
            Some(Ok(Frame::data(bytes)))
        })
    }
}

async fn next(mut events: broadcast::Receiver<Bytes>) -> Next {
    let quiet = sleep(Duration::from_secs(EVENTS_KEEP_ALIVE_SECS));
    let bytes = tokio::select! {
        event = events.recv() => match event {
            Ok(event) => event,
            Err(RecvError::Lagged(count)) => written(&Event::Lost { count }),
            Err(RecvError::Closed) => return None,
        },
        () = quiet => Bytes::from_static(KEEP_ALIVE),
    };
    Some((events, bytes))
}
