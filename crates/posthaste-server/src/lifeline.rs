//! The lifeline: standard input as the sign that whoever started this process still lives.
//!
//! A parent keeps the other end of a pipe. When it ends, however it ends, the system closes the pipe, and the
//! child ends too. Refused: asking for the parent's number now and then (numbers are used again), and a
//! signal at the parent's death (`PR_SET_PDEATHSIG`: Linux alone, and it means the parent's thread).

use tokio::io::AsyncReadExt;

/// Returns when standard input is at its end. What is written into it is ignored.
pub(crate) async fn closed() {
    let mut stdin = tokio::io::stdin();
    let mut ignored = [0; 64];
    while stdin.read(&mut ignored).await.is_ok_and(|bytes| bytes > 0) {}
}
