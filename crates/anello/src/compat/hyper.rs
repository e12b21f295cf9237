//! Implementations of hyper's runtime traits.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Executor, Read, ReadBufCursor, Sleep, Timer};

use super::poll::impl_read;
use crate::executor::{TimerKey, try_current, with_current};
use crate::io::{DuplexReadHalf, DuplexStream};
use crate::net::{Connection, Sealed, StreamFamily, StreamSocket};

#[inline]
fn read(
    connection: &Connection,
    context: &mut Context<'_>,
    mut buffer: ReadBufCursor<'_>,
) -> Poll<io::Result<()>> {
    let room = buffer.remaining();
    connection.poll_copy(room, |bytes| buffer.put_slice(bytes), context).map_ok(|_count| ())
}

fn copy(
    reader: &mut DuplexReadHalf,
    context: &mut Context<'_>,
    mut buffer: ReadBufCursor<'_>,
) -> Poll<io::Result<()>> {
    let room = buffer.remaining();
    reader.poll_copy(room, |bytes| buffer.put_slice(bytes), context).map_ok(|_count| ())
}

impl_read!(Read, [F: StreamFamily] StreamSocket<F>, |stream| stream.connection(), read(ReadBufCursor<'_>) -> ());
impl_read!(Read, [] DuplexReadHalf, |reader| reader, copy(ReadBufCursor<'_>) -> ());
impl_read!(Read, [] DuplexStream, |stream| &mut stream.reader, copy(ReadBufCursor<'_>) -> ());

/// An executor that spawns hyper's background tasks (HTTP/2 needs one per stream) on the runtime of the calling thread.
///
/// It uses [`spawn`](crate::spawn), so the futures need not be `Send`.
///
/// ```no_run
/// # anello::example! {
/// use anello::compat::{HyperExecutor, HyperTimer};
/// use anello::net::TcpListener;
/// use http_body_util::Full;
/// use hyper::body::{Bytes, Incoming};
/// use hyper::server::conn::http2;
/// use hyper::service::service_fn;
/// use hyper::{Request, Response};
///
/// async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
///     Ok(Response::new(Full::from("Hello, World!")))
/// }
///
/// let stream = TcpListener::bind("127.0.0.1:8080")?.accept().await?;
/// http2::Builder::new(HyperExecutor).timer(HyperTimer).serve_connection(stream, service_fn(hello)).await?;
/// # }
/// ```
///
/// # Panics
/// [`execute`](Executor::execute) panics if no runtime is running on the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct HyperExecutor;

impl<F> Executor<F> for HyperExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        crate::spawn(future).detach();
    }
}

/// Duration used if the requested duration exceeds the range of `Instant`.
const FAR_FUTURE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A timer for hyper's timeouts, such as those for request headers and keep-alive.
///
/// It uses the timer wheel of the runtime that polls the connection; see [`time`](crate::time).
///
/// ```
/// # fn server() -> hyper::server::conn::http1::Builder {
/// use anello::compat::HyperTimer;
/// use std::time::Duration;
///
/// let mut server = hyper::server::conn::http1::Builder::new();
/// server.timer(HyperTimer).header_read_timeout(Duration::from_secs(10));
/// # server
/// # }
/// ```
///
/// Unlike [`time::sleep`](crate::time::sleep), the sleeps of this timer are `Send` and `Sync`. Handlers that must be
/// `Send` can therefore await them: `HyperTimer.sleep(duration).await`.
///
/// A sleep that moves to another thread after it has been polled continues on the runtime of that thread. The timer on
/// the first runtime stays in its wheel until the deadline, and then causes a spurious wake-up. The same applies to a
/// sleep that is dropped on another thread. On the simulated driver, [`now`](Timer::now) returns the virtual time.
///
/// # Panics
/// Polling a sleep panics if no runtime is running on the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct HyperTimer;

impl Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        let now = self.now();
        self.sleep_until(now.checked_add(duration).unwrap_or(now + FAR_FUTURE))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Sleeping { deadline, registered: None })
    }

    fn now(&self) -> Instant {
        with_current(|shared| shared.time.runtime_clock.instant_at(shared.now_ns()))
            .unwrap_or_else(Instant::now)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleeping>() {
            Some(sleeping) => {
                let sleeping = sleeping.get_mut();
                sleeping.cancel();
                sleeping.deadline = new_deadline;
            }
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

/// Hyper requires sleeps that are `Send` and `Sync`, but a timer wheel belongs to one thread. A sleep therefore holds no
/// reference to a runtime.
#[derive(Debug)]
struct Sleeping {
    deadline: Instant,
    /// While the timer is pending: the ID of the runtime that last polled the sleep, and the timer's key. The key is
    /// valid only in the wheel of that runtime, and is never reused.
    registered: Option<(u64, TimerKey)>,
}

impl Sleeping {
    fn cancel(&mut self) {
        if let Some((runtime_id, timer)) = self.registered.take()
            && let Some(shared) = try_current()
            && shared.time.runtime_clock.id == runtime_id
        {
            shared.cancel_timer(timer);
        }
    }
}

impl Sleep for Sleeping {}

impl Future for Sleeping {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let sleeping = self.get_mut();
        let Some(shared) = try_current() else {
            panic!(
                "no anello runtime on this thread (await the timer in Runtime::block_on or a spawned task)"
            )
        };
        let runtime_id = shared.time.runtime_clock.id;
        if let Some((_, timer)) = sleeping.registered.filter(|(id, _)| *id == runtime_id) {
            if shared.wait_on(timer, context.waker()) {
                return Poll::Pending;
            }
            // The timer has fired, and the wheel never fires early.
            sleeping.registered = None;
            return Poll::Ready(());
        }
        // The clock need not be read here: in the next turn, the wheel fires any timer whose deadline has passed.
        let deadline_ns = shared.time.runtime_clock.ns_at(sleeping.deadline);
        let timer = shared.time.wheel.borrow_mut().insert(deadline_ns, context.waker().clone());
        sleeping.registered = Some((runtime_id, timer));
        Poll::Pending
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        self.cancel();
    }
}
