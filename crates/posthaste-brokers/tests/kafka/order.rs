//! Order by key: where keys land, how fast a hot one goes, and what a failure in its middle does.

use super::*;
use posthaste_testkit::require_service;

#[tokio::test]
async fn f34_keys_land_where_the_java_client_puts_them() {
    let kafka = require_service!(shared().await);
    let here = topic_with(kafka, 7, &[]).await;
    let sink = build(config(kafka)).await;
    let keys: Vec<String> = ["a", "order-1", "ключ", "x y z", &"k".repeat(300)]
        .iter()
        .map(ToString::to_string)
        .chain((0..40).map(|n| format!("tenant-{n}")))
        .collect();
    let messages: Vec<_> = keys.iter().map(|key| keyed(&here, key)).collect();
    assert_delivered(&sink.publish(&messages).await);
    let records = kafka.dump(&here).await.expect("read");
    for key in &keys {
        let ours =
            records.iter().find(|record| record.key.as_deref() == Some(key.as_bytes())).expect("there");
        let (theirs, _) = kafka.produce(&[], &here, key, "java").await.expect("produced");
        assert_eq!(ours.partition, theirs, "key {key:?}");
    }
}

#[tokio::test]
async fn the_routes_partition_key_is_the_records_key_and_the_events_key_is_a_header() {
    let kafka = require_service!(shared().await);
    let here = topic_with(kafka, 5, &[]).await;
    let sink = build(config(kafka)).await;
    let of_tenant = |key: &str| Message { partition_key: Some("tenant-7".to_owned()), ..keyed(&here, key) };
    let messages: Vec<_> = (0..20).map(|n| of_tenant(&n.to_string())).chain([loose(&here)]).collect();
    assert_delivered(&sink.publish(&messages).await);
    let records = kafka.dump(&here).await.expect("read");
    let (loose, tenants): (Vec<_>, Vec<_>) = records.iter().partition(|record| record.key.is_none());
    assert_eq!((loose.len(), tenants.len()), (1, 20));
    assert!(tenants.iter().all(|record| record.key.as_deref() == Some(b"tenant-7")));
    assert!(tenants.iter().all(|record| record.partition == tenants[0].partition));
    let mut keys: Vec<_> =
        tenants.iter().filter_map(|record| record.header("key")?.parse::<u32>().ok()).collect();
    keys.sort_unstable();
    assert_eq!(keys, (0..20).collect::<Vec<_>>());
}

/// One message for each round trip would take 20 seconds here.
#[tokio::test]
async fn g3_a_hot_key_does_not_wait_for_each_answer_and_keeps_its_order() {
    let (kafka, proxied) = require_service!(proxied().await);
    let here = topic(&kafka).await;
    let sink = build(proxied).await;
    until_delivered(&sink, &here, DEADLINE).await;
    kafka.node(1).proxy("PROXIED").delay(Duration::from_millis(20)).await;
    let calls: Vec<Vec<Message>> =
        (0..10).map(|call| (0..100).map(|n| numbered(&here, "hot", call * 100 + n)).collect()).collect();
    let started = Instant::now();
    let verdicts = futures_util::future::join_all(calls.iter().map(|call| sink.publish(call))).await;
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    verdicts.iter().for_each(|verdicts| assert_delivered(verdicts));
    let there: Vec<usize> = kafka
        .dump(&here)
        .await
        .expect("read")
        .iter()
        .skip(1)
        .filter_map(|record| String::from_utf8(record.value.clone()?).ok()?.parse().ok())
        .collect();
    assert_eq!(there, (0..1_000).collect::<Vec<_>>());
}

/// A record that the broker refuses ends the producer: nothing behind it is delivered, in whichever call it
/// was, and the next producer goes on.
#[tokio::test]
async fn g3_nothing_behind_a_refused_message_of_a_hot_key_is_delivered() {
    let kafka = require_service!(shared().await);
    let (narrow, other) = (topic_with(kafka, 1, &["max.message.bytes=20000"]).await, topic(kafka).await);
    let sink = build(config(kafka)).await;
    until_delivered(&sink, &narrow, DEADLINE).await;
    until_delivered(&sink, &other, DEADLINE).await;
    let large = || message(&narrow, Event::new("orders.placed", noise(60_000)).with_key("hot"));
    let make = |n: usize| if n == 150 { large() } else { numbered(&narrow, "hot", n) };
    let calls: Vec<Vec<Message>> =
        (0..4).map(|call| (call * 100..call * 100 + 100).map(make).collect()).collect();
    let others: Vec<_> = (0..100).map(|n| keyed(&other, &n.to_string())).collect();
    let publishing = futures_util::future::join_all(calls.iter().map(|call| sink.publish(call)));
    let (verdicts, _) = tokio::join!(publishing, sink.publish(&others));
    let verdicts: Vec<_> = verdicts.into_iter().flatten().collect();
    let delivered = verdicts.iter().take_while(|verdict| **verdict == Verdict::Delivered).count();
    assert!(delivered <= 150, "{:?}", verdicts[150]);
    assert!(
        verdicts[delivered..].iter().all(|verdict| *verdict == Verdict::Held),
        "{:?}",
        &verdicts[delivered..]
    );
    let numbers = |records: Vec<posthaste_testkit::services::KafkaRecord>| -> Vec<usize> {
        let number = |value: &Vec<u8>| String::from_utf8(value.clone()).ok()?.parse().ok();
        records.iter().filter_map(|record| number(record.value.as_ref()?)).collect()
    };
    let there = numbers(kafka.dump(&narrow).await.expect("read"));
    assert!(there.iter().all(|number| *number < 150), "{there:?}");
    assert!(there.is_sorted(), "{there:?}");
    // Alone in its request, the large one is judged; then the others may go.
    let verdict = publish_one(&sink, large()).await;
    assert_seen(&verdict, "rejected", "kafka.too_large", Scope::Event);
    let mut rest: Vec<_> =
        (delivered..400).filter(|n| *n != 150).map(|n| numbered(&narrow, "hot", n)).collect();
    // A slow broker's answer may still be on its way: what is held goes again, as the relay sends it.
    let started = Instant::now();
    while !rest.is_empty() {
        let verdicts = sink.publish(&rest).await;
        let delivered = verdicts.iter().take_while(|verdict| **verdict == Verdict::Delivered).count();
        let held = verdicts[delivered..].iter().all(|verdict| *verdict == Verdict::Held);
        assert!(held && started.elapsed() < 2 * DEADLINE, "{:?}", &verdicts[delivered..]);
        rest.drain(..delivered);
    }
    let mut there = numbers(kafka.dump(&narrow).await.expect("read"));
    there.dedup();
    let mut firsts = Vec::new();
    for number in there {
        if !firsts.contains(&number) {
            firsts.push(number);
        }
    }
    assert_eq!(firsts, (0..400).filter(|n| *n != 150).collect::<Vec<_>>());
    assert_delivered(&sink.publish(&[keyed(&other, "after")]).await);
}

#[tokio::test]
async fn g3_a_key_that_changes_its_topic_waits_for_the_answer() {
    let kafka = require_service!(shared().await);
    let (here, there) = (topic(kafka).await, topic(kafka).await);
    let sink = build(config(kafka)).await;
    until_delivered(&sink, &here, DEADLINE).await;
    until_delivered(&sink, &there, DEADLINE).await;
    let place = |n: usize| {
        if n.is_multiple_of(3) {
            "missing-for-ever"
        } else if n.is_multiple_of(2) {
            &here
        } else {
            &there
        }
    };
    let verdicts = sink.publish(&(1..20).map(|n| keyed(place(n), "k")).collect::<Vec<_>>()).await;
    assert_eq!(verdicts[..2], [Verdict::Delivered, Verdict::Delivered]);
    assert_seen(&verdicts[2], "retry", "kafka.no_topic", Scope::Destination);
    assert!(verdicts[3..].iter().all(|verdict| *verdict == Verdict::Held), "{verdicts:?}");
    assert_eq!(kafka.dump(&here).await.expect("read").len(), 2);
    assert_eq!(kafka.dump(&there).await.expect("read").len(), 2);
}
