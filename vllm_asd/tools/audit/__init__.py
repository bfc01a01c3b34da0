"""The audit: does quality hold under the limits in force, on the user's own server, tasks and drafter?"""
