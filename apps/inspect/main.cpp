// inspect
int main() { return 70; }
