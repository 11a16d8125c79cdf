// communicator
