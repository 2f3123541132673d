"""The errors by which the controller refuses what it is asked, by their codes."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error

BrokerNotRegistered = kafka_error(ErrorCode.broker_id_not_registered)
InvalidAssignment = kafka_error(ErrorCode.invalid_replica_assignment)
InvalidPartitions = kafka_error(ErrorCode.invalid_partitions)
InvalidReplicationFactor = kafka_error(ErrorCode.invalid_replication_factor)
InvalidRequest = kafka_error(ErrorCode.invalid_request)
InvalidTopicName = kafka_error(ErrorCode.invalid_topic_exception)
PolicyViolation = kafka_error(ErrorCode.policy_violation)
NoReassignmentInProgress = kafka_error(ErrorCode.no_reassignment_in_progress)
ReassignmentInProgress = kafka_error(ErrorCode.reassignment_in_progress)
LogDirNotFound = kafka_error(ErrorCode.log_dir_not_found)
ReplicaNotAvailable = kafka_error(ErrorCode.replica_not_available)
StorageError = kafka_error(ErrorCode.kafka_storage_error)
TopicAlreadyExists = kafka_error(ErrorCode.topic_already_exists)
TopicDeletionDisabled = kafka_error(ErrorCode.topic_deletion_disabled)
UnknownTopic = kafka_error(ErrorCode.unknown_topic_or_partition)
UnknownTopicId = kafka_error(ErrorCode.unknown_topic_id)
