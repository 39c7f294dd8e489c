//! Why the publisher is our own (docs/adr/0007): the usual client gives a returned message to whichever
//! confirmation comes next. This test passes as long as that is so.

use super::fake::Fake;
use super::*;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Confirmation};

/// Two messages in flight. No queue takes the second, and the first is confirmed after the return: so does a
/// broker whenever the first one's queue takes longer (a quorum queue, a disk).
#[tokio::test]
async fn lapin_still_pairs_a_return_with_the_wrong_confirmation() {
    let fake = Fake::start().await;
    let broker = async {
        let mut peer = fake.accept().await;
        let first = peer.published().await.expect("the first message");
        let second = peer.published().await.expect("the second message");
        assert_eq!([&*first.routing_key, &*second.routing_key], ["taken", "nobody"]);
        peer.give_back(&second).await;
        peer.ack(first.channel, 1, false).await;
        peer.ack(second.channel, 2, false).await;
        peer
    };
    let client = async {
        let (_connection, channel) = connect(&fake.url()).await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        let mut confirms = Vec::new();
        for routing_key in ["taken", "nobody"] {
            let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
            let properties = BasicProperties::default().with_message_id(routing_key.into());
            let sent = channel.basic_publish("".into(), routing_key.into(), mandatory, b"x", properties);
            confirms.push(sent.await.expect("sent"));
        }
        let mut returned = Vec::new();
        for confirm in confirms {
            match confirm.await.expect("a confirmation") {
                Confirmation::Ack(message) => returned.push(message.is_some()),
                other => panic!("{other:?} is no acknowledgement"),
            }
        }
        returned
    };
    let (_peer, returned) = tokio::join!(broker, client);
    assert_ne!(returned, [false, true], "lapin pairs returns rightly now: read ADR 7 again");
    assert_eq!(returned, [true, false], "the lost message counts as delivered, and the stored one as lost");
}
